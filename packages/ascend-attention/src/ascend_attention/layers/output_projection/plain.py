"""The output projection of whole groups, which the other variants build upon."""

from __future__ import annotations

from typing import Any

import torch
from ascend_ops_core.ops.rotary import apply_rotary
from ascend_ops_core.quantized_weights.weight import (
    QuantizedWeight,
    project,
    project_groups,
)
from torch import nn

from ascend_attention.layers.output_projection.variants import ProjectionPart
from ascend_attention.ops.mla import mla_epilogue


class OutputProjection(nn.Module):
    """Inverse rotation and both products, for the tokens and heads of this rank.

    Attributes:
        wo_a: ``[g, N, k]``, this rank's groups and of each of them its channels.
        wo_b: ``[H, n]``, this rank's columns of the low rank. Either may be quantised.

    Args:
        part: what of the weights this rank holds.
        rank: low rank of a group, N.
        hidden: hidden size, H.
        dtype: of the weights.
    """

    def __init__(self, part: ProjectionPart, rank: int, hidden: int, dtype: torch.dtype) -> None:
        super().__init__()
        self.part = part
        self.wo_a: Any = _weight(part.num_groups, rank, part.num_channels, dtype=dtype)
        self.wo_b: Any = _weight(hidden, part.num_latents, dtype=dtype)

    def hold(self, name: str, weight: QuantizedWeight) -> None:
        """Hold a weight as its checkpoint stores it.

        Args:
            name: ``"wo_a"``, then its rows are those of all groups, or ``"wo_b"``.
            weight: the weight.
        """
        delattr(self, name)
        setattr(self, name, weight)

    def forward(self, attended: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
        """This rank's term ``[T, H]``.

        Args:
            attended: ``[T, h, D]`` what attention returns.
            cos: ``[T, R / 2]`` float32.
            sin: the same shape.
        """
        if isinstance(self.wo_a, torch.Tensor) and isinstance(self.wo_b, torch.Tensor):
            return mla_epilogue(attended, self.wo_a, self.wo_b, cos, sin)
        plain = apply_rotary(attended, cos, sin, at_end=True, inverse=True)
        grouped = plain.reshape(len(plain), self.part.num_groups, self.part.num_channels)
        return self.to_hidden(self.to_latent(grouped).flatten(1))

    def to_latent(self, rows: torch.Tensor) -> torch.Tensor:
        """``[T, g, N]``, the first product of rows ``[T, g, k]`` alone."""
        return project_groups(rows, self.wo_a)

    def to_hidden(self, latent: torch.Tensor) -> torch.Tensor:
        """``[T, H]``, the second product of ``[T, n]`` alone."""
        return project(latent, self.wo_b)


def _weight(*shape: int, dtype: torch.dtype) -> nn.Parameter:
    return nn.Parameter(torch.empty(*shape, dtype=dtype), requires_grad=False)
