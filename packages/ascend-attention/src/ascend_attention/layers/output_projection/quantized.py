"""The output projection with 8-bit weights and tokens, on A5, however ranks share it."""

from __future__ import annotations

from typing import Any

import torch
from ascend_ops_core.ops.mx_linear import mxfp8_grouped_linear
from ascend_ops_core.ops.quantization import mxfp8_quantize
from ascend_ops_core.ops.rotary import apply_rotary
from torch import nn

from ascend_attention.layers.output_projection.exchange import (
    ExchangedOutputProjection,
    LatentParallelOutputProjection,
)
from ascend_attention.layers.output_projection.plain import OutputProjection


class QuantizedProducts(OutputProjection):
    """Both products in MXFP8, the weights quantised once and tokens in every step.

    Stands in front of a projection that lays the ranks out, whose arguments it takes. Rows travel
    between ranks as they are, and are quantised where they are multiplied.

    Attributes:
        wo_a: ``[g, N, k]``, float8_e4m3fn after :meth:`quantize_weights`.
        wo_b: ``[H, n]``, the same.
        wo_a_scale: ``[g, N, k / 32]`` uint8, exponents plus 127.
        wo_b_scale: ``[H, n / 32]``.
    """

    wo_a_scale: torch.Tensor
    wo_b_scale: torch.Tensor

    def __init__(self, *given: Any, **named: Any) -> None:
        super().__init__(*given, **named)
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

    def to_latent(self, rows: torch.Tensor) -> torch.Tensor:
        """See :meth:`OutputProjection.to_latent`."""
        # Weights that no checkpoint filled (vLLM's load format "dummy") come as they were made.
        self.quantize_weights()
        scaled = mxfp8_quantize(rows.contiguous())
        return mxfp8_grouped_linear(*scaled, self.wo_a, self.wo_a_scale, rows.dtype)

    def to_hidden(self, latent: torch.Tensor) -> torch.Tensor:
        """See :meth:`OutputProjection.to_hidden`."""
        scaled = mxfp8_quantize(latent.unsqueeze(1).contiguous())
        weight = self.wo_b.unsqueeze(0), self.wo_b_scale.unsqueeze(0)
        return mxfp8_grouped_linear(*scaled, *weight, latent.dtype).squeeze(1)


class QuantizedOutputProjection(QuantizedProducts):
    """``fp8``: each rank has whole groups, those of its heads."""

    def forward(self, attended: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
        """See :meth:`OutputProjection.forward`."""
        tokens = attended.shape[0]
        if tokens == 0:
            return attended.new_empty((0, self.wo_b.shape[0]))
        groups, _, channels = self.wo_a.shape
        plain = apply_rotary(attended, cos, sin, at_end=True, inverse=True)
        return self.to_hidden(self.to_latent(plain.reshape(tokens, groups, channels)).flatten(1))


class QuantizedExchangedOutputProjection(QuantizedProducts, ExchangedOutputProjection):
    """``otp_fp8``: see :class:`ExchangedOutputProjection`."""


class QuantizedLatentParallelOutputProjection(QuantizedProducts, LatentParallelOutputProjection):
    """``olora_tp_fp8``: see :class:`LatentParallelOutputProjection`."""
