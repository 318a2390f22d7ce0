"""Row addresses and row writes on a CPU: one loop instead of several indexing calls of torch."""

from __future__ import annotations

import torch
from ascend_ops_core.cpu_numeric import FASTMATH, as_numpy, narrow, widen
from numba import njit

_DTYPES = (torch.float32, torch.bfloat16)
_INTEGERS = (torch.int32, torch.int64)


def can_locate(block_table: torch.Tensor, request: torch.Tensor, row: torch.Tensor) -> bool:
    """A list of rows with a request each, or a table of rows with a request per line."""
    return (
        block_table.dtype in _INTEGERS
        and block_table.is_contiguous()
        and block_table.numel() > 0
        and request.dtype == row.dtype == torch.int64
        and (
            (row.dim() == 1 and request.shape == row.shape)
            or (row.dim() == 2 and request.shape == (row.shape[0], 1))
        )
    )


def locate_rows(
    block_table: torch.Tensor, request: torch.Tensor, row: torch.Tensor, rows_per_block: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Block and offset; see :func:`ascend_attention.ops.paged_rows.locate_rows`."""
    rows = row.contiguous().view(request.shape[0], row.shape[1] if row.dim() == 2 else 1)
    block, offset = torch.empty_like(rows), torch.empty_like(rows)
    inside = _locate(
        as_numpy(block_table),
        as_numpy(request.contiguous().view(-1)),
        as_numpy(rows),
        rows_per_block,
        as_numpy(block),
        as_numpy(offset),
    )
    if not inside:
        raise IndexError(
            f"a row lies outside the {tuple(block_table.shape)} block table of requests with "
            f"{rows_per_block} rows per block"
        )
    return block.view(row.shape), offset.view(row.shape)


def can_write(cache: torch.Tensor, rows: torch.Tensor) -> bool:
    """float32 or bfloat16 on both sides, contiguous rows that fit, a cache in unit steps."""
    return (
        cache.dtype in _DTYPES
        and rows.dtype in _DTYPES
        and rows.is_contiguous()
        and rows.dim() == 2
        and cache.dim() == 3
        and cache.stride(-1) == 1
        and cache.shape[-1] == rows.shape[-1]
        and cache.numel() > 0
    )


def write_rows(
    cache: torch.Tensor, rows: torch.Tensor, block: torch.Tensor, offset: torch.Tensor
) -> None:
    """See :func:`ascend_attention.ops.paged_rows.write_rows`."""
    blocks, per_block, width = cache.shape
    over_blocks, over_rows, _ = cache.stride()
    span = (blocks - 1) * over_blocks + (per_block - 1) * over_rows + width
    inside = _write(
        as_numpy(cache.as_strided((span,), (1,))),
        blocks,
        per_block,
        over_blocks,
        over_rows,
        as_numpy(rows),
        as_numpy(block.contiguous()),
        as_numpy(offset.contiguous()),
    )
    if not inside:
        raise IndexError(
            f"a row lies outside a cache of {blocks} blocks of {per_block} rows; nothing of it "
            f"was written"
        )


@njit(cache=True)
def _locate(table, request, rows, per_block, block, offset):  # type: ignore[no-untyped-def]
    for i in range(rows.shape[0]):
        r = request[i]
        if r < 0 or r >= table.shape[0]:
            return False
        for j in range(rows.shape[1]):
            row = rows[i, j]
            column = row // per_block
            if row < 0 or column >= table.shape[1]:
                return False
            block[i, j] = table[r, column]
            offset[i, j] = row - column * per_block
    return True


@njit(fastmath=FASTMATH, cache=True)
def _write(  # type: ignore[no-untyped-def]
    flat, blocks, per_block, over_blocks, over_rows, rows, block, offset
):
    width = rows.shape[1]
    for i in range(rows.shape[0]):
        if block[i] >= blocks or offset[i] >= per_block:
            return False
    for i in range(rows.shape[0]):
        if block[i] < 0 or offset[i] < 0:
            continue
        start = block[i] * over_blocks + offset[i] * over_rows
        target = flat[start : start + width]
        source = rows[i]
        for d in range(width):
            target[d] = narrow(flat, widen(source[d]))
    return True
