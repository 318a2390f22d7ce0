"""DeepSeek-V3.2's attention block: latent attention over the tokens that an indexer selects."""

from __future__ import annotations

from ascend_attention.layers.token_indexer import IndexerShape, TokenIndexer
from ascend_attention.vllm.sfa import SFAAttention

from ascend_models_deepseek.deepseek_v3.attention import mla_shape
from ascend_models_deepseek.deepseek_v3.build import Build
from ascend_models_deepseek.deepseek_v32.config import DeepseekV32Spec

DeepseekV32Indexer = TokenIndexer
"""The lightning indexer over tokens, by the model's name."""


class DeepseekV32Attention(SFAAttention):
    """Attention of one layer.

    Args:
        build: what all layers share.
        layer: number of the layer, MTP layers after the main ones.
        prefix: name of the layer, with its number.
    """

    def __init__(self, build: Build, layer: int, prefix: str) -> None:
        spec = build.spec
        assert isinstance(spec, DeepseekV32Spec)
        super().__init__(
            mla_shape(build),
            indexer_shape(spec) if spec.has_indexer(layer) else None,
            build.dtype,
            prefix,
            device=build.device,
            block_tokens=build.block_tokens,
            keep_dtype=build.keep_dtype,
            int8_latents=build.int8_latents,
            context=build.context,
        )


def indexer_shape(spec: DeepseekV32Spec) -> IndexerShape:
    """Sizes of an indexer."""
    assert spec.q_lora_rank is not None
    return IndexerShape(
        spec.hidden_size,
        spec.q_lora_rank,
        spec.index_n_heads,
        spec.index_head_dim,
        spec.qk_rope_head_dim,
        spec.index_topk,
        spec.indexer_rope_interleave,
    )
