"""Reading and writing rows of a paged cache.

A cache is ``[B, P, D]``: blocks, rows per block, values per row. It may be a strided view into a
slab that several caches share, so rows are always addressed as (block, offset).
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from ascend_ops_core.cpu_kernels import CpuKernels

_cpu = CpuKernels("ascend_attention.ops.paged_rows.cpu")

__all__ = ["RowIndex", "gather_rows", "locate_rows", "write_rows"]


class RowIndex(NamedTuple):
    """Where rows live.

    Attributes:
        block: integer tensor of any shape.
        offset: the same shape; the row within the block.
    """

    block: torch.Tensor
    offset: torch.Tensor


def locate_rows(
    block_table: torch.Tensor, request: torch.Tensor, row: torch.Tensor, rows_per_block: int
) -> RowIndex:
    """Translate row numbers within requests to cache positions.

    Args:
        block_table: ``[R, nb]`` integer, blocks of every request in order.
        request: integer, broadcastable to ``row``.
        row: integer row numbers, each at least 0 and within the request's blocks.
        rows_per_block: rows that one block holds.
    """
    kernels = _cpu.usable(block_table, request, row)
    if kernels is not None and kernels.can_locate(block_table, request, row):
        return RowIndex(*kernels.locate_rows(block_table, request, row, rows_per_block))
    column = torch.div(row, rows_per_block, rounding_mode="floor")
    return RowIndex(block_table[request, column].long(), row - column * rows_per_block)


def gather_rows(cache: torch.Tensor, index: RowIndex) -> torch.Tensor:
    """Rows at ``index``: ``[*index.shape, D]`` in the cache's dtype, a copy."""
    return cache[index.block, index.offset]


def write_rows(cache: torch.Tensor, rows: torch.Tensor, index: RowIndex) -> None:
    """Write ``rows [N, D]`` at ``index`` (each ``[N]``), rounding to the cache's dtype.

    Padding rows must have been dropped from ``rows`` and ``index``: an index of -1 would reach
    the last block.
    """
    if not rows.shape[0]:
        return
    kernels = _cpu.usable(cache, rows)
    if kernels is not None and kernels.can_write(cache, rows):
        kernels.write_rows(cache, rows, index.block, index.offset)
    else:
        cache[index.block, index.offset] = rows.to(cache.dtype)
