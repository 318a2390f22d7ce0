"""Row addresses, reads and writes in Triton: a row is one transfer to or from a scalar address."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from ascend_ops_core.devices import current_facts
from ascend_ops_core.kernels import as_int64
from ascend_ops_core.launch import launch
from ascend_ops_core.tiling import block_of, next_power_of_two

_BITS_OF_SIZE = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}

# Per row: number, table column and block as int32, their float32 quotient, the place in the piece
# of the table and its comparison, what was found, and int64 copies of both results.
_LOCATED_BYTES = 64

# Per entry of the table: as int32, and the copy that is looked up.
_TABLE_BYTES = 16

_LONGEST_PIECE = 4096


@triton.jit
def _locate_kernel(
    table_ptr,
    request_ptr,
    row_ptr,
    block_ptr,
    offset_ptr,
    table_stride,
    entries,
    count,
    strips,
    programs,
    PER_BLOCK: tl.constexpr,
    PIECE: tl.constexpr,
    BLOCK: tl.constexpr,
):
    lanes = tl.arange(0, BLOCK)
    places = tl.arange(0, PIECE)
    for unit in range(tl.program_id(0), programs, tl.num_programs(0)):
        line = unit // strips
        start = (unit - line * strips) * BLOCK
        request = tl.load(request_ptr + line).to(tl.int32)
        table = table_ptr + as_int64(request) * table_stride
        here = as_int64(line) * count + start + lanes
        inside = lanes < count - start
        row = tl.load(row_ptr + here, mask=inside, other=0).to(tl.int32)
        # Integer division costs an NPU a step per element; the quotient in float32 is at most one
        # off, which the remainder tells.
        column = (row.to(tl.float32) * (1.0 / PER_BLOCK)).to(tl.int32)
        rest = row - column * PER_BLOCK
        column = tl.where(rest < 0, column - 1, tl.where(rest >= PER_BLOCK, column + 1, column))
        block = tl.zeros((BLOCK,), tl.float32)
        for first in range(0, entries, PIECE):
            piece = tl.load(table + first + places, mask=places < entries - first, other=0)
            at = column - first
            within = (at >= 0) & (at < PIECE)
            # Lookups take floats; only their bits are moved.
            bits = piece.to(tl.int32).to(tl.float32, bitcast=True)
            block = tl.where(within, tl.gather(bits, tl.where(within, at, 0), 0), block)
        block = block.to(tl.int32, bitcast=True)
        tl.store(block_ptr + here, block.to(tl.int64), mask=inside)
        tl.store(offset_ptr + here, (row - column * PER_BLOCK).to(tl.int64), mask=inside)


@triton.jit
def _gather_kernel(
    cache_ptr,
    block_ptr,
    offset_ptr,
    rows_ptr,
    block_stride,
    row_stride,
    width,
    programs,
    BLOCK: tl.constexpr,
):
    lanes = tl.arange(0, BLOCK)
    for unit in range(tl.program_id(0), programs, tl.num_programs(0)):
        block = tl.load(block_ptr + unit).to(tl.int32)
        offset = tl.load(offset_ptr + unit).to(tl.int32)
        source = cache_ptr + as_int64(block) * block_stride + as_int64(offset) * row_stride
        for start in range(0, width, BLOCK):
            inside = lanes < width - start
            row = tl.zeros((BLOCK,), cache_ptr.dtype.element_ty)
            if (block >= 0) & (offset >= 0):
                row = tl.load(source + start + lanes, mask=inside, other=0)
            tl.store(rows_ptr + as_int64(unit) * width + start + lanes, row, mask=inside)


@triton.jit
def _write_kernel(
    cache_ptr,
    rows_ptr,
    block_ptr,
    offset_ptr,
    block_stride,
    row_stride,
    from_stride,
    width,
    programs,
    BLOCK: tl.constexpr,
):
    lanes = tl.arange(0, BLOCK)
    for unit in range(tl.program_id(0), programs, tl.num_programs(0)):
        block = tl.load(block_ptr + unit).to(tl.int32)
        offset = tl.load(offset_ptr + unit).to(tl.int32)
        if (block >= 0) & (offset >= 0):
            to = cache_ptr + as_int64(block) * block_stride + as_int64(offset) * row_stride
            source = rows_ptr + as_int64(unit) * from_stride
            for start in range(0, width, BLOCK):
                inside = lanes < width - start
                row = tl.load(source + start + lanes, mask=inside)
                tl.store(to + start + lanes, row.to(cache_ptr.dtype.element_ty), mask=inside)


def locate_rows(
    block_table: torch.Tensor, request: torch.Tensor, row: torch.Tensor, rows_per_block: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """See :func:`ascend_attention.ops.paged_rows.locate_rows`."""
    block = torch.empty(row.shape, dtype=torch.int64, device=row.device)
    offset = torch.empty(row.shape, dtype=torch.int64, device=row.device)
    # One request for each line of rows.
    lines, count = (row.shape[0], 1) if row.dim() == 1 else (row.shape[0], row.shape[1])
    entries = block_table.shape[1]
    facts = current_facts()
    piece = min(next_power_of_two(entries), _LONGEST_PIECE)
    size = block_of(
        facts,
        streamed=row.element_size() + 16,
        local=_LOCATED_BYTES,
        fixed=piece * (2 * block_table.element_size() + _TABLE_BYTES),
        maximum=next_power_of_two(count),
    )
    strips = -(-count // size)
    programs = lines * strips
    arguments = {
        "table_ptr": block_table,
        "request_ptr": request.contiguous(),
        "row_ptr": row.contiguous(),
        "block_ptr": block,
        "offset_ptr": offset,
        "table_stride": block_table.stride(0),
        "entries": entries,
        "count": count,
        "strips": strips,
        "programs": programs,
    }
    constants = {"PER_BLOCK": rows_per_block, "PIECE": piece, "BLOCK": size}
    launch(_locate_kernel, programs, arguments, constants)
    return block, offset


def gather_rows(cache: torch.Tensor, block: torch.Tensor, offset: torch.Tensor) -> torch.Tensor:
    """See :func:`ascend_attention.ops.paged_rows.gather_rows`."""
    width = cache.shape[2]
    rows = torch.empty((*block.shape, width), dtype=cache.dtype, device=cache.device)
    bits = _BITS_OF_SIZE[cache.element_size()]
    arguments = {
        "cache_ptr": cache.view(bits),
        "block_ptr": block.contiguous(),
        "offset_ptr": offset.contiguous(),
        "rows_ptr": rows.view(bits),
        "block_stride": cache.stride(0),
        "row_stride": cache.stride(1),
        "width": width,
        "programs": block.numel(),
    }
    size = block_of(
        current_facts(), streamed=2 * cache.element_size(), maximum=next_power_of_two(width)
    )
    launch(_gather_kernel, block.numel() if width else 0, arguments, {"BLOCK": size})
    return rows


def write_rows(
    cache: torch.Tensor, rows: torch.Tensor, block: torch.Tensor, offset: torch.Tensor
) -> None:
    """See :func:`ascend_attention.ops.paged_rows.write_rows`."""
    count, width = rows.shape
    rows = rows if rows.stride(1) == 1 else rows.contiguous()
    arguments = {
        "cache_ptr": cache,
        "rows_ptr": rows,
        "block_ptr": block.contiguous(),
        "offset_ptr": offset.contiguous(),
        "block_stride": cache.stride(0),
        "row_stride": cache.stride(1),
        "from_stride": rows.stride(0),
        "width": width,
        "programs": count,
    }
    size = block_of(
        current_facts(),
        streamed=rows.element_size() + cache.element_size(),
        local=4,
        maximum=next_power_of_two(width),
    )
    launch(_write_kernel, count if width else 0, arguments, {"BLOCK": size})
