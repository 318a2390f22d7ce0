"""DeepSeek-V3's attention block: latent attention over all tokens of a request."""

from __future__ import annotations

from ascend_attention.layers.mla import MLAShape
from ascend_attention.vllm.mla import MLAAttention

from ascend_models_deepseek.deepseek_v3.build import Build


class DeepseekV3Attention(MLAAttention):
    """Attention of one layer.

    Args:
        build: what all layers share.
        layer: number of the layer, MTP layers after the main ones.
        prefix: name of the layer, with its number.
    """

    def __init__(self, build: Build, layer: int, prefix: str) -> None:
        super().__init__(
            mla_shape(build),
            build.dtype,
            prefix,
            device=build.device,
            block_tokens=build.block_tokens,
            context=build.context,
        )


def mla_shape(build: Build) -> MLAShape:
    """Sizes of a layer's latent attention on this rank."""
    spec = build.spec
    return MLAShape(
        spec.hidden_size,
        build.shard.num_heads,
        spec.q_lora_rank,
        spec.kv_lora_rank,
        spec.qk_nope_head_dim,
        spec.qk_rope_head_dim,
        spec.v_head_dim,
        spec.softmax_scale,
        spec.rms_norm_eps,
        spec.rope_interleave,
    )
