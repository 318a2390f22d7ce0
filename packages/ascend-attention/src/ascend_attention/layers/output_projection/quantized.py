"""The output projection with 8-bit weights and tokens, on A5."""

from __future__ import annotations

import torch
from ascend_ops_core.ops.mx_linear import mxfp8_grouped_linear
from ascend_ops_core.ops.quantization import mxfp8_quantize
from ascend_ops_core.ops.rotary import apply_rotary
from torch import nn

from ascend_attention.layers.output_projection.plain import OutputProjection
from ascend_attention.layers.output_projection.variants import ProjectionPart


class QuantizedOutputProjection(OutputProjection):
    """``fp8``: both products in MXFP8, the weights quantised once and tokens in every step.

    Attributes:
        wo_a: ``[g, N, K]``, float8_e4m3fn after :meth:`quantize_weights`.
        wo_b: ``[H, n]``, the same.
        wo_a_scale: ``[g, N, K / 32]`` uint8, exponents plus 127.
        wo_b_scale: ``[H, n / 32]``.
    """

    wo_a_scale: torch.Tensor
    wo_b_scale: torch.Tensor

    def __init__(self, part: ProjectionPart, rank: int, hidden: int, dtype: torch.dtype) -> None:
        super().__init__(part, rank, hidden, dtype)
        for name in ("wo_a", "wo_b"):
            self.register_buffer(f"{name}_scale", None, persistent=False)

    def quantize_weights(self) -> None:
        """Replace the loaded weights by their 8-bit form, once; a second call does nothing."""
        for name in ("wo_a", "wo_b"):
            weight = getattr(self, name)
            if weight.dtype != torch.float8_e4m3fn:
                values, scale = mxfp8_quantize(weight.data)
                setattr(self, name, nn.Parameter(values, requires_grad=False))
                setattr(self, f"{name}_scale", scale)

    def forward(self, attended: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
        """See :meth:`OutputProjection.forward`."""
        tokens, dtype = attended.shape[0], attended.dtype
        if tokens == 0:
            return attended.new_empty((0, self.wo_b.shape[0]))
        # Weights that no checkpoint filled (vLLM's load format "dummy") come as they were made.
        self.quantize_weights()
        groups, _, channels = self.wo_a.shape
        plain = apply_rotary(attended, cos, sin, at_end=True, inverse=True)
        latent = mxfp8_grouped_linear(
            *mxfp8_quantize(plain.reshape(tokens, groups, channels)),
            self.wo_a,
            self.wo_a_scale,
            dtype,
        )
        return mxfp8_grouped_linear(
            *mxfp8_quantize(latent.reshape(tokens, 1, -1)),
            self.wo_b.unsqueeze(0),
            self.wo_b_scale.unsqueeze(0),
            dtype,
        ).squeeze(1)
