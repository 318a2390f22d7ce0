"""Biases of attention from relative positions."""

from __future__ import annotations

import math

import torch
from ascend_ops_core.checks import require_at_least, require_shape
from torch import nn


def relative_position_bucket(
    distance: torch.Tensor, *, bidirectional: bool, num_buckets: int, max_distance: int
) -> torch.Tensor:
    """Number of the bucket that a distance falls into (T5, section 2.1).

    Half of the buckets of a direction hold one distance each, the others logarithmically growing
    ranges up to ``max_distance``, behind which all distances share the last one.

    Args:
        distance: position of the key minus that of the query, integer, any shape.
        bidirectional: half of the buckets are for keys behind the query; without it all of those
            share the bucket of distance 0.
        num_buckets: of all directions.
        max_distance: see above.

    Returns:
        int64 of the same shape, from 0 to ``num_buckets - 1``.

    Raises:
        InvalidInputError: fewer than two buckets in a direction, or a maximum that single distances
            pass already.
    """
    per_direction = num_buckets // 2 if bidirectional else num_buckets
    require_at_least("buckets of a direction", per_direction, 2)
    exact = per_direction // 2
    require_at_least("max_distance", max_distance, exact + 1)
    if bidirectional:
        offset = (distance > 0).long() * per_direction
        away = distance.abs()
    else:
        offset = torch.zeros_like(distance, dtype=torch.int64)
        away = (-distance).clamp(min=0)
    growth = torch.log(away.clamp(min=1).float() / exact) / math.log(max_distance / exact)
    ranged = exact + (growth * (per_direction - exact)).long()
    return offset + torch.where(away < exact, away.long(), ranged.clamp(max=per_direction - 1))


class RelativePositionBias(nn.Module):
    """A learnt bias for every bucket and head.

    Args:
        num_buckets: see :func:`relative_position_bucket`.
        max_distance: the same.
        num_heads: heads of this rank.
        bidirectional: an encoder's; a decoder's otherwise.

    Attributes:
        weight: ``[num_buckets, num_heads]``.
    """

    def __init__(
        self, num_buckets: int, max_distance: int, num_heads: int, *, bidirectional: bool
    ) -> None:
        super().__init__()
        self.num_buckets = num_buckets
        self.max_distance = max_distance
        self.bidirectional = bidirectional
        self.weight = nn.Parameter(torch.empty(num_buckets, num_heads), requires_grad=False)

    def forward(self, queries: int, keys: int, earlier: int = 0) -> torch.Tensor:
        """``[1, num_heads, queries, keys]``; a decoder's later keys are not hidden by it.

        Args:
            queries: tokens that attend, at positions from ``earlier`` on.
            keys: tokens that are attended to, at positions from 0 on.
            earlier: tokens before the first query.
        """
        device = self.weight.device
        at = torch.arange(earlier, earlier + queries, device=device)
        bucket = relative_position_bucket(
            torch.arange(keys, device=device) - at.unsqueeze(-1),
            bidirectional=self.bidirectional,
            num_buckets=self.num_buckets,
            max_distance=self.max_distance,
        )
        return self.weight[bucket].permute(2, 0, 1).unsqueeze(0)


def decomposed_relative_bias(
    query: torch.Tensor, over_rows: torch.Tensor, over_columns: torch.Tensor, size: tuple[int, int]
) -> torch.Tensor:
    """Bias of patches on a grid: query times a vector for each distance along both axes.

    MViTv2 (section 4.1), as SAM has it: a table that was learnt for another size is interpolated.

    Args:
        query: ``[B, R * C, H, D]``, not scaled.
        over_rows: ``[N, D]``, a vector for every distance of rows from ``-(N - 1) / 2`` on.
        over_columns: the same for columns.
        size: ``(R, C)``, rows and columns of patches.

    Returns:
        ``[B, H, R * C, R * C]`` in the query's dtype.

    Raises:
        InvalidInputError: a query of another number of patches.
    """
    rows, columns = size
    require_shape("query", query, None, rows * columns, None, None)
    grid = query.unflatten(1, (rows, columns))
    by_row = torch.einsum("brchd,rkd->bhrck", grid, _vectors(over_rows, rows))
    by_column = torch.einsum("brchd,ckd->bhrck", grid, _vectors(over_columns, columns))
    return (by_row.unsqueeze(-1) + by_column.unsqueeze(-2)).flatten(4).flatten(2, 3)


def _vectors(table: torch.Tensor, size: int) -> torch.Tensor:
    """``[size, size, D]``, the vector of every pair of places along an axis."""
    wanted = 2 * size - 1
    if table.shape[0] != wanted:
        resized = nn.functional.interpolate(table.float().T.unsqueeze(0), wanted, mode="linear")
        table = resized[0].T.to(table.dtype)
    place = torch.arange(size, device=table.device)
    return table[place.unsqueeze(-1) - place + size - 1]
