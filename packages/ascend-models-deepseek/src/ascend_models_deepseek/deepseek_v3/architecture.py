"""What the kin of DeepSeek-V3 exchange: config, attention, and the attention's tensors.

DeepSeek-V3.2 and GLM-5 are DeepSeek-V3 with another attention; everything else is shared.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from ascend_models_deepseek.deepseek_v3.config import DeepseekV3Spec
from ascend_models_deepseek.deepseek_v3.sharding import Shard
from ascend_models_deepseek.deepseek_v3.weights import TensorRule, attention_rules

if TYPE_CHECKING:
    from ascend_attention.caches import CacheKind
    from torch import nn

    from ascend_models_deepseek.deepseek_v3.build import Build

AttentionRules = Callable[[Any, Shard, int, str, str], Iterator[tuple[str, TensorRule]]]


@dataclass(frozen=True)
class Architecture:
    """One model of the family.

    Attributes:
        model_type: of ``config.json``.
        spec: its validated config.
        attention: makes the attention of a layer from what all layers share, the layer's number
            and its name. The module maps ``(hidden [T, H], cos, sin)`` to this rank's part of
            ``[T, H]``.
        rules: tensors of that attention, given config, shard, layer, and the prefixes of names in
            the checkpoint and of parameters.
        caches: the caches of one layer, given config, layer, dtype, device family and tokens per
            block (None for the default), whether they keep the model's dtype, and whether latents
            have eight bits.
        sparse: attention reads selected tokens.
    """

    model_type: str
    spec: type[DeepseekV3Spec]
    attention: Callable[[Build, int, str], nn.Module]
    rules: AttentionRules
    caches: Callable[[Any, int, torch.dtype, str, int | None, bool, bool], list[CacheKind]]
    sparse: bool = False


def _dense_attention(build: Build, layer: int, prefix: str) -> nn.Module:
    # Imported when a model is built: it needs vLLM, which planning a model does not.
    from ascend_models_deepseek.deepseek_v3.attention import DeepseekV3Attention

    return DeepseekV3Attention(build, layer, prefix)


def latent_caches(
    spec: DeepseekV3Spec,
    layer: int,
    dtype: torch.dtype,
    device: str,
    block_tokens: int | None,
    keep_dtype: bool = False,
    int8_latents: bool = False,
) -> list[CacheKind]:
    """The one cache of a layer of DeepSeek-V3, which has the model's dtype on every family."""
    from ascend_attention.caches import mla_caches

    return list(
        mla_caches(
            kv_lora_rank=spec.kv_lora_rank,
            rotary_dim=spec.qk_rope_head_dim,
            dtype=dtype,
            device=device,
            block_tokens=block_tokens,
        ).values()
    )


DEEPSEEK_V3 = Architecture(
    "deepseek_v3", DeepseekV3Spec, _dense_attention, attention_rules, latent_caches
)
