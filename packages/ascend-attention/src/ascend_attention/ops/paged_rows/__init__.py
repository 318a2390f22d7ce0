"""Reading and writing rows of a paged cache.

A cache is ``[B, P, D]``: blocks, rows per block, values per row. It may be a strided view into a
slab that several caches share, so rows are always addressed as (block, offset).
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from ascend_ops_core.checks import INDICES, require_at_least, require_dtype
from ascend_ops_core.cpu_kernels import CpuKernels
from ascend_ops_core.errors import InvalidInputError
from ascend_ops_core.registry import declare

from ascend_attention.ops.paged_rows import reference

_cpu = CpuKernels("ascend_attention.ops.paged_rows.cpu")

__all__ = ["RowIndex", "gather_rows", "locate_rows", "write_rows"]


class RowIndex(NamedTuple):
    """Where rows live.

    Attributes:
        block: integer tensor of any shape; negative for padding, which is no row.
        offset: the same shape; the row within the block; negative for padding as well.
    """

    block: torch.Tensor
    offset: torch.Tensor


def locate_rows(
    block_table: torch.Tensor, request: torch.Tensor, row: torch.Tensor, rows_per_block: int
) -> RowIndex:
    """Translate row numbers within requests to cache positions.

    Args:
        block_table: ``[R, nb]`` int32 or int64, blocks of every request in order.
        request: integer, broadcastable to ``row``.
        row: integer row numbers, each at least 0 and within the request's blocks.
        rows_per_block: rows that one block holds.

    Returns:
        Block and offset, int64, each in the shape of ``row``.

    Raises:
        InvalidInputError: a table of another shape or dtype, or no rows in a block.
        IndexError: on a CPU, a request or row outside the table.
    """
    require_at_least("rows_per_block", rows_per_block, 1)
    require_dtype("block_table", block_table, INDICES)
    if block_table.dim() != 2:
        raise InvalidInputError(
            f"block_table of shape {list(block_table.shape)}",
            "it is [requests, blocks]",
            "Pass the table of one cache group.",
        )
    return RowIndex(*_LOCATE_ROWS(block_table, request, row, rows_per_block))


def gather_rows(cache: torch.Tensor, index: RowIndex) -> torch.Tensor:
    """Rows at ``index``: ``[*index.shape, D]`` in the cache's dtype, a copy.

    Args:
        cache: ``[B, P, D]``, any dtype and strides.
        index: int32 or int64, of any shape; padding gives a row of zeros and reads nothing.

    Raises:
        InvalidInputError: another shape or dtype.
        IndexError: on a CPU, a row outside the cache.
    """
    _check("gather_rows", cache, index)
    rows: torch.Tensor = _GATHER_ROWS(cache, index.block, index.offset)
    return rows


def write_rows(cache: torch.Tensor, rows: torch.Tensor, index: RowIndex) -> None:
    """Write ``rows [N, D]`` at ``index`` (each ``[N]``), rounding to the cache's dtype.

    Args:
        cache: ``[B, P, D]``, any strides; written.
        rows: any float dtype; ``N`` may be 0.
        index: int32 or int64, rows that differ from each other; padding writes nothing.

    Raises:
        InvalidInputError: another shape or dtype; nothing was written then.
        IndexError: on a CPU, a row outside the cache; nothing was written then.
    """
    _check("write_rows", cache, index)
    if rows.dim() != 2 or index.block.shape != rows.shape[:1] or rows.shape[1] != cache.shape[2]:
        raise InvalidInputError(
            f"write_rows of rows {list(rows.shape)} at {list(index.block.shape)} places of a "
            f"cache {list(cache.shape)}",
            f"there is one place for every row, and rows have {cache.shape[2]} values",
            "Check the shapes.",
        )
    _WRITE_ROWS(cache, rows, index.block, index.offset)


def _check(name: str, cache: torch.Tensor, index: RowIndex) -> None:
    block, offset = index
    if cache.dim() != 3 or block.shape != offset.shape:
        raise InvalidInputError(
            f"{name} of a cache {list(cache.shape)} at {list(block.shape)} blocks and "
            f"{list(offset.shape)} offsets",
            "a cache is [blocks, rows, values], and every block has an offset",
            "Check the shapes.",
        )
    require_dtype("block", block, INDICES)
    require_dtype("offset", offset, INDICES)


def _locate_rows_cpu(
    block_table: torch.Tensor, request: torch.Tensor, row: torch.Tensor, rows_per_block: int
) -> tuple[torch.Tensor, torch.Tensor]:
    kernels = _cpu.usable(block_table, request, row)
    if kernels is not None and kernels.can_locate(block_table, request, row):
        return kernels.locate_rows(block_table, request, row, rows_per_block)
    return reference.locate_rows(block_table, request, row, rows_per_block)


def _gather_rows_cpu(
    cache: torch.Tensor, block: torch.Tensor, offset: torch.Tensor
) -> torch.Tensor:
    # Indexing is the fastest way here, but it would take padding for the last rows.
    if not block.numel() or int(torch.minimum(block, offset).min()) >= 0:
        return cache[block, offset]
    return reference.gather_rows(cache, block, offset)


def _write_rows_cpu(
    cache: torch.Tensor, rows: torch.Tensor, block: torch.Tensor, offset: torch.Tensor
) -> None:
    if not rows.shape[0]:
        return
    kernels = _cpu.usable(cache, rows)
    if kernels is not None and kernels.can_write(cache, rows):
        kernels.write_rows(cache, rows, block, offset)
    else:
        reference.write_rows(cache, rows, block, offset)


def _fake_index(
    block_table: torch.Tensor, request: torch.Tensor, row: torch.Tensor, rows_per_block: int
) -> tuple[torch.Tensor, torch.Tensor]:
    block = torch.empty(row.shape, dtype=torch.int64, device=row.device)
    return block, torch.empty_like(block)


_LOCATE_ROWS = declare(
    __name__,
    "locate_rows(Tensor block_table, Tensor request, Tensor row, int rows_per_block)"
    " -> (Tensor, Tensor)",
    npu=("triton", "torch"),
    fake=_fake_index,
    cpu=_locate_rows_cpu,
)
_GATHER_ROWS = declare(
    __name__,
    "gather_rows(Tensor cache, Tensor block, Tensor offset) -> Tensor",
    npu=("triton", "torch"),
    fake=lambda cache, block, offset: torch.empty(
        (*block.shape, cache.shape[2]), dtype=cache.dtype, device=cache.device
    ),
    cpu=_gather_rows_cpu,
)
_WRITE_ROWS = declare(
    __name__,
    "write_rows(Tensor(a!) cache, Tensor rows, Tensor block, Tensor offset) -> ()",
    npu=("triton", "torch"),
    fake=lambda *args: None,
    cpu=_write_rows_cpu,
)
