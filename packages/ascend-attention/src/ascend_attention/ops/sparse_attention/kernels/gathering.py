"""Copies each token's rows side by side, and says which columns and tiles hold any."""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from ascend_ops_core.devices import current_facts
from ascend_ops_core.kernels import as_int64
from ascend_ops_core.launch import launch
from ascend_ops_core.tiling import block_of, next_power_of_two

from ascend_attention.ops.sparse_attention.kernels.unpacking import unpack
from ascend_attention.ops.sparse_attention.plan import Plan

# Per column: block, offset and column as int32, their comparisons, the bias and both bounds, once
# for each source.
_MARKED_BYTES = 80

_LONGEST_STRIP = 1024


@triton.jit
def _mark(
    block_ptr,
    offset_ptr,
    valid_ptr,
    count,
    bias_row,
    first,
    columns,
    low,
    high,
    MASKED: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Write the bias of one source's columns; widen ``low`` and ``high`` to those with a row."""
    lanes = tl.arange(0, BLOCK)
    for start in range(0, columns, BLOCK):
        inside = lanes < count - start
        at = start + lanes
        block = tl.load(block_ptr + at, mask=inside, other=-1).to(tl.int32)
        offset = tl.load(offset_ptr + at, mask=inside, other=-1).to(tl.int32)
        real = (block >= 0) & (offset >= 0)
        if MASKED:
            real = real & (tl.load(valid_ptr + at, mask=inside, other=0) != 0)
        bias = tl.where(real, 0.0, float("-inf"))
        tl.store(bias_row + first + at, bias, mask=lanes < columns - start)
        lowest = tl.min(tl.where(real, first + at, 2147483647), axis=0)
        highest = tl.max(tl.where(real, first + at, -1), axis=0)
        low = tl.where(lowest < low, lowest, low)
        high = tl.where(highest > high, highest, high)
    return low, high


@triton.jit
def _mark_kernel(
    block_ptr,
    offset_ptr,
    valid_ptr,
    count,
    other_block_ptr,
    other_offset_ptr,
    other_valid_ptr,
    other_count,
    bias_ptr,
    span_ptr,
    border,
    columns,
    programs,
    ROWS: tl.constexpr,
    MASKED: tl.constexpr,
    OTHER_MASKED: tl.constexpr,
    TWO: tl.constexpr,
    BLOCK: tl.constexpr,
):
    for unit in range(tl.program_id(0), programs, tl.num_programs(0)):
        token = as_int64(unit)
        bias_row = bias_ptr + token * columns
        at = token * count
        low, high = _mark(
            block_ptr + at,
            offset_ptr + at,
            valid_ptr + at,
            count,
            bias_row,
            0,
            border,
            tl.full((), 2147483647, tl.int32),
            tl.full((), -1, tl.int32),
            MASKED,
            BLOCK,
        )
        if TWO:
            at = token * other_count
            low, high = _mark(
                other_block_ptr + at,
                other_offset_ptr + at,
                other_valid_ptr + at,
                other_count,
                bias_row,
                border,
                columns - border,
                low,
                high,
                OTHER_MASKED,
                BLOCK,
            )
        first = tl.where(high < 0, 0, low // ROWS)
        tl.store(span_ptr + 2 * unit, first)
        tl.store(span_ptr + 2 * unit + 1, tl.where(high < 0, 0, high // ROWS - first + 1))


@triton.jit
def _copy(
    cache_ptr,
    block_ptr,
    offset_ptr,
    valid_ptr,
    count,
    to_ptr,
    block_stride,
    row_stride,
    WIDTH: tl.constexpr,
    PADDED: tl.constexpr,
    ROWS: tl.constexpr,
    MASKED: tl.constexpr,
):
    """Copy up to ``count`` rows of one tile, and write zeros for the others."""
    lanes = tl.arange(0, PADDED)
    for i in range(ROWS):
        row = tl.zeros((PADDED,), to_ptr.dtype.element_ty)
        if i < count:
            block = tl.load(block_ptr + i).to(tl.int32)
            offset = tl.load(offset_ptr + i).to(tl.int32)
            wanted = (block >= 0) & (offset >= 0)
            if MASKED:
                wanted = wanted & (tl.load(valid_ptr + i) != 0)
            if wanted:
                source = cache_ptr + as_int64(block) * block_stride
                source += as_int64(offset) * row_stride
                if WIDTH == PADDED:
                    row = tl.load(source + lanes).to(to_ptr.dtype.element_ty)
                else:
                    row = tl.load(source + lanes, mask=lanes < WIDTH, other=0.0)
                    row = row.to(to_ptr.dtype.element_ty)
        tl.store(to_ptr + i * PADDED + lanes, row)


@triton.jit
def _gather_kernel(
    cache_ptr,
    block_ptr,
    offset_ptr,
    valid_ptr,
    count,
    block_stride,
    row_stride,
    other_cache_ptr,
    other_block_ptr,
    other_offset_ptr,
    other_valid_ptr,
    other_count,
    other_block_stride,
    other_row_stride,
    rows_ptr,
    span_ptr,
    border,
    columns,
    programs,
    WIDTH: tl.constexpr,
    PADDED: tl.constexpr,
    ROWS: tl.constexpr,
    MASKED: tl.constexpr,
    OTHER_MASKED: tl.constexpr,
    TWO: tl.constexpr,
):
    tiles = columns // ROWS
    for unit in range(tl.program_id(0), programs, tl.num_programs(0)):
        token = unit // tiles
        tile = unit - token * tiles
        first = tl.load(span_ptr + 2 * token)
        used = tl.load(span_ptr + 2 * token + 1)
        if (tile >= first) & (tile < first + used):
            start = tile * ROWS
            to = rows_ptr + (as_int64(token) * columns + start) * PADDED
            if start < border:
                at = as_int64(token) * count + start
                _copy(
                    cache_ptr,
                    block_ptr + at,
                    offset_ptr + at,
                    valid_ptr + at,
                    count - start,
                    to,
                    block_stride,
                    row_stride,
                    WIDTH,
                    PADDED,
                    ROWS,
                    MASKED,
                )
            else:
                if TWO:
                    at = as_int64(token) * other_count + start - border
                    _copy(
                        other_cache_ptr,
                        other_block_ptr + at,
                        other_offset_ptr + at,
                        other_valid_ptr + at,
                        other_count - (start - border),
                        to,
                        other_block_stride,
                        other_row_stride,
                        WIDTH,
                        PADDED,
                        ROWS,
                        OTHER_MASKED,
                    )


def gather(
    sources: list[tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor | None]],
    rows: torch.Tensor,
    bias: torch.Tensor,
    span: torch.Tensor,
    cut: Plan,
    width: int,
    rotary: int | None,
) -> None:
    """Fill the columns of one or two sources.

    Args:
        sources: cache ``[B, P, D]`` or of packed rows, block, offset ``[t, N]`` and validity of
            each.
        rows: ``[t or more, columns, padded]``; written where a tile is in its token's span.
        bias: ``[t or more, columns]`` float32; 0 for rows and -inf for others.
        span: ``[t or more, 2]`` int32; each token's first tile with a row, and how many there are
            up to the last.
        cut: the sizes.
        width: of a row.
        rotary: rotated values of packed rows, or None.
    """
    tokens = sources[0][1].shape[0]
    places: dict[str, Any] = {}
    caches: dict[str, Any] = {}
    # A single source is named twice; the second time is compiled away.
    for prefix, (cache, block, offset, valid) in zip(("", "other_"), sources * 2, strict=False):
        mask = offset if valid is None else valid.contiguous().view(torch.int8)
        places |= {
            f"{prefix}block_ptr": block.contiguous(),
            f"{prefix}offset_ptr": offset.contiguous(),
            f"{prefix}valid_ptr": mask,
            f"{prefix}count": block.shape[1],
        }
        caches |= {
            f"{prefix}cache_ptr": cache,
            f"{prefix}block_stride": cache.stride(0),
            f"{prefix}row_stride": cache.stride(1),
        }
    first, last = sources[0], sources[-1]
    shared = {
        "span_ptr": span,
        "border": -(-first[1].shape[1] // cut.rows) * cut.rows,
        "columns": cut.columns,
    }
    constants = {
        "ROWS": cut.rows,
        "MASKED": first[3] is not None,
        "OTHER_MASKED": last[3] is not None,
        "TWO": len(sources) > 1,
    }
    strip = block_of(
        current_facts(),
        streamed=2 * (2 * first[1].element_size() + 5),
        local=_MARKED_BYTES,
        maximum=min(next_power_of_two(cut.columns), _LONGEST_STRIP),
    )
    marked = {**places, **shared, "bias_ptr": bias, "programs": tokens}
    launch(_mark_kernel, tokens, marked, {**constants, "BLOCK": strip})
    programs = tokens * (cut.columns // cut.rows)
    gathered = {**places, **caches, **shared, "rows_ptr": rows, "programs": programs}
    if rotary is not None:
        unpack(first[0], last[0], gathered, constants, cut, width, rotary)
        return
    sizes = {"WIDTH": width, "PADDED": cut.padded}
    launch(_gather_kernel, programs, gathered, {**constants, **sizes})
