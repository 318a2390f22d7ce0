"""The output projection of whole groups, which the other variants build upon."""

from __future__ import annotations

import torch
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


def _weight(*shape: int, dtype: torch.dtype) -> nn.Parameter:
    return nn.Parameter(torch.empty(*shape, dtype=dtype), requires_grad=False)
