"""What DeepSeek-V3.2 exchanges of DeepSeek-V3: config, attention, its tensors and its caches."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from ascend_models_deepseek.deepseek_v3.architecture import Architecture
from ascend_models_deepseek.deepseek_v3.sharding import Shard
from ascend_models_deepseek.deepseek_v3.weights import Rules, TensorRule, attention_rules
from ascend_models_deepseek.deepseek_v32.config import DeepseekV32Spec

if TYPE_CHECKING:
    from ascend_attention.caches import CacheKind
    from torch import nn

    from ascend_models_deepseek.deepseek_v3.build import Build


def sparse_attention(build: Build, layer: int, prefix: str) -> nn.Module:
    """The attention of a layer."""
    # Imported when a model is built: it needs vLLM, which planning a model does not.
    from ascend_models_deepseek.deepseek_v32.attention import DeepseekV32Attention

    return DeepseekV32Attention(build, layer, prefix)


def sparse_attention_rules(
    spec: DeepseekV32Spec, shard: Shard, layer: int, name: str, param: str
) -> Rules:
    """Tensors of latent attention and, in layers that have one, of the indexer."""
    yield from attention_rules(spec, shard, layer, name, param)
    if not spec.has_indexer(layer):
        return
    heads, width, hidden = spec.index_n_heads, spec.index_head_dim, spec.hidden_size
    name, param = f"{name}.indexer", f"{param}.indexer"
    assert spec.q_lora_rank is not None
    yield f"{name}.wq_b.weight", TensorRule((heads * width, spec.q_lora_rank), f"{param}.wq_b")
    fused = f"{param}.wk_weights"
    yield f"{name}.wk.weight", TensorRule((width, hidden), fused, (slice(0, width),))
    yield (
        f"{name}.weights_proj.weight",
        TensorRule((heads, hidden), fused, (slice(width, None),)),
    )
    yield f"{name}.k_norm.weight", TensorRule((width,), f"{param}.k_norm")
    yield f"{name}.k_norm.bias", TensorRule((width,), f"{param}.k_norm_bias")


def sparse_caches(
    spec: DeepseekV32Spec,
    layer: int,
    dtype: torch.dtype,
    device: str,
    block_tokens: int | None,
    keep_dtype: bool = False,
    int8_latents: bool = False,
) -> list[CacheKind]:
    """The caches of a layer: latents, and the keys of its indexer if it has one."""
    from ascend_attention.caches import sparse_mla_caches

    return list(
        sparse_mla_caches(
            kv_lora_rank=spec.kv_lora_rank,
            rotary_dim=spec.qk_rope_head_dim,
            index_head_dim=spec.index_head_dim if spec.has_indexer(layer) else None,
            dtype=dtype,
            device=device,
            block_tokens=block_tokens,
            keep_dtype=keep_dtype,
            int8_latents=int8_latents,
        ).values()
    )


DEEPSEEK_V32 = Architecture(
    "deepseek_v32",
    DeepseekV32Spec,
    sparse_attention,
    sparse_attention_rules,
    sparse_caches,
    sparse=True,
)
