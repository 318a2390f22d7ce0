"""AscendKimiK3DeltaAttention: the projections, the states and the recurrence of one layer."""

from __future__ import annotations

import torch
from ascend_ops_core.ops.gated_norm import rms_norm_gated
from torch import nn

from ascend_attention.layers.kda import NORM_EPS, KDAShape, KimiDeltaProjections
from ascend_attention.ops.linear_gates import kda_gates
from ascend_attention.state_caches import StateKind
from ascend_attention.vllm.linear.core import DeltaHeads, DeltaInputs, gated_delta_step
from ascend_attention.vllm.linear.states import LinearStateLayer

__all__ = ["AscendKimiK3DeltaAttention"]


class AscendKimiK3DeltaAttention(nn.Module):
    """Kimi delta attention of one layer, with the gates of Kimi-Linear or of Kimi-K3.

    Args:
        shape: sizes on this rank.
        state: what the layer keeps of a request on this rank.
        dtype: the model's dtype.
        prefix: name of the layer, with its number.
    """

    def __init__(self, shape: KDAShape, state: StateKind, dtype: torch.dtype, prefix: str) -> None:
        super().__init__()
        self.shape = shape
        self.heads = DeltaHeads(shape.num_heads, shape.num_heads, shape.head_dim, shape.head_dim)
        self.weights = KimiDeltaProjections(shape, dtype)
        self.states = LinearStateLayer(state, f"{prefix}.states")

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        """``[T, D]``, this rank's part of the sum over heads.

        Args:
            hidden: ``[T, D]`` normed input of the layer.
        """
        weights, each = self.weights, (self.shape.num_heads, self.shape.head_dim)
        given = weights.project(hidden)
        attended = self._attend(given.mixed, given.decay.unflatten(-1, each), given.beta)
        normed = rms_norm_gated(
            attended,
            given.gate.reshape(attended.shape),
            weights.o_norm,
            eps=NORM_EPS,
            activation="sigmoid",
        )
        return weights.output(normed)

    def _attend(self, mixed: torch.Tensor, decay: torch.Tensor, beta: torch.Tensor) -> torch.Tensor:
        """``[T, H, d]``; zeros in padding rows and in a dummy run without caches."""
        weights, meta = self.weights, self.states.metadata()
        if meta is None:
            return mixed.new_zeros(decay.shape)
        tokens = meta.num_tokens
        decay, beta = kda_gates(
            decay[:tokens],
            beta[:tokens],
            weights.a_log,
            weights.dt_bias.view(decay.shape[1:]),
            lower_bound=self.shape.gate_lower_bound,
        )
        out = mixed.new_empty((mixed.shape[0], *decay.shape[1:]))
        given = DeltaInputs(mixed[:tokens], decay, beta, weights.conv)
        gated_delta_step(self.heads, self.states, given, meta, out)
        return out
