"""The output projection of whole groups, which the other variants build upon."""

from __future__ import annotations

import torch
from ascend_ops_core.ops.linear import grouped_linear, linear
from torch import nn

from ascend_attention.layers.output_projection.variants import ProjectionPart
from ascend_attention.ops.mla import mla_epilogue


class OutputProjection(nn.Module):
    """Inverse rotation and both products, for the tokens and heads of this rank.

    Attributes:
        wo_a: ``[g, N, k]``, this rank's groups and of each of them its channels.
        wo_b: ``[H, n]``, this rank's columns of the low rank.

    Args:
        part: what of the weights this rank holds.
        rank: low rank of a group, N.
        hidden: hidden size, H.
        dtype: of the weights.
    """

    def __init__(self, part: ProjectionPart, rank: int, hidden: int, dtype: torch.dtype) -> None:
        super().__init__()
        self.wo_a = _weight(part.num_groups, rank, part.num_channels, dtype=dtype)
        self.wo_b = _weight(hidden, part.num_latents, dtype=dtype)

    def forward(self, attended: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
        """This rank's term ``[T, H]``.

        Args:
            attended: ``[T, h, D]`` what attention returns.
            cos: ``[T, R / 2]`` float32.
            sin: the same shape.
        """
        return mla_epilogue(attended, self.wo_a, self.wo_b, cos, sin)

    def to_latent(self, rows: torch.Tensor) -> torch.Tensor:
        """``[T, g, N]``, the first product of rows ``[T, g, k]`` alone."""
        return grouped_linear(rows, self.wo_a)

    def to_hidden(self, latent: torch.Tensor) -> torch.Tensor:
        """``[T, H]``, the second product of ``[T, n]`` alone."""
        return linear(latent, self.wo_b)


def _weight(*shape: int, dtype: torch.dtype) -> nn.Parameter:
    return nn.Parameter(torch.empty(*shape, dtype=dtype), requires_grad=False)
