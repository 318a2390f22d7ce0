"""Kimi's attention blocks: delta attention, and latent attention without positions."""

from __future__ import annotations

import torch
from ascend_attention.layers.mla import MLAShape
from ascend_attention.state_caches import kda_state
from ascend_attention.vllm.linear import AscendHybridMLACache, AscendKimiK3DeltaAttention
from ascend_attention.vllm.mla import MLAAttention
from ascend_ops_core.ops.linear import linear

from ascend_models_kimi.kimi_linear.build import Build, parameter
from ascend_models_kimi.kimi_linear.weights import delta_shape


class KimiDeltaAttention(AscendKimiK3DeltaAttention):
    """Delta attention of one layer.

    Args:
        build: what all layers share.
        prefix: name of the layer, with its number.
    """

    def __init__(self, build: Build, prefix: str) -> None:
        shape = delta_shape(build.spec, build.shard)
        state = kda_state(
            num_heads=shape.num_heads,
            head_dim=shape.head_dim,
            conv_width=shape.conv_width,
            dtype=build.dtype,
            drafts=build.drafts,
        )
        super().__init__(shape, state, build.dtype, prefix)


class AscendKimiMLAAttention(MLAAttention):
    """Latent attention of one layer, which rotates nothing.

    Args:
        build: what all layers share.
        prefix: name of the layer, with its number.

    Attributes:
        gate: ``[h * V, H]``, projection of the output gate (Kimi-K3), or None.
    """

    cache_cls = AscendHybridMLACache

    def __init__(self, build: Build, prefix: str) -> None:
        spec = build.spec
        super().__init__(
            MLAShape(
                spec.hidden_size,
                build.shard.num_heads,
                spec.q_lora_rank,
                spec.kv_lora_rank,
                spec.qk_nope_head_dim,
                spec.qk_rope_head_dim,
                spec.v_head_dim,
                spec.softmax_scale,
                spec.rms_norm_eps,
            ),
            build.dtype,
            prefix,
            device=build.device,
        )
        # All layers share one, which is a module of the model's and of none of them.
        self._shared = (build.rotation,)
        self.gate = None
        if spec.mla_output_gate:
            values = build.shard.num_heads * spec.v_head_dim
            self.gate = parameter(values, spec.hidden_size, dtype=build.dtype)

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
        """``[T, H]``, this rank's part of the sum over heads.

        Args:
            hidden: ``[T, H]`` normed input of the layer.
        """
        cos, sin = self._shared[0](hidden.shape[0])
        query = self.weights.project(hidden, cos, sin)
        values = self.impl.forward(query, cos, sin)
        if self.gate is not None:
            gate = linear(hidden, self.gate).float().sigmoid()
            values = (values.float() * gate.view(values.shape)).to(values.dtype)
        return self.weights.output(values)
