"""Copies each token's packed rows side by side, in the query's dtype."""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from ascend_ops_core.kernels import as_int64
from ascend_ops_core.launch import launch
from ascend_ops_core.ops.quantization.kernels import e4m3_values, e8m0_values

from ascend_attention.ops.packed_rows.kernels import constants_of, rotated_values
from ascend_attention.ops.sparse_attention.plan import Plan


@triton.jit
def _unpack(
    packed_ptr,
    rotated_ptr,
    block_ptr,
    offset_ptr,
    valid_ptr,
    count,
    to_ptr,
    block_bytes,
    row_bytes,
    QUANTISED: tl.constexpr,
    ROTARY: tl.constexpr,
    GROUPS: tl.constexpr,
    LINES: tl.constexpr,
    LANES: tl.constexpr,
    GROUP: tl.constexpr,
    PADDED: tl.constexpr,
    ROWS: tl.constexpr,
    MASKED: tl.constexpr,
):
    """Unpack up to ``count`` rows of one tile, and write zeros for the others."""
    g = tl.arange(0, LINES)
    r = tl.arange(0, LANES)
    at = g[:, None] * GROUP + tl.arange(0, GROUP)[None, :]
    inside = at < QUANTISED
    for i in range(ROWS):
        values = tl.zeros((LINES, GROUP), to_ptr.dtype.element_ty)
        rotated = tl.zeros((LANES,), to_ptr.dtype.element_ty)
        if i < count:
            block = tl.load(block_ptr + i).to(tl.int32)
            offset = tl.load(offset_ptr + i).to(tl.int32)
            wanted = (block >= 0) & (offset >= 0)
            if MASKED:
                wanted = wanted & (tl.load(valid_ptr + i) != 0)
            if wanted:
                source = packed_ptr + as_int64(block) * block_bytes
                source += as_int64(offset) * row_bytes
                codes = tl.load(source + QUANTISED + 2 * ROTARY + g, mask=g < GROUPS, other=0)
                scales = e8m0_values(codes.to(tl.int32))
                bits = tl.load(source + at, mask=inside, other=0)
                values = (e4m3_values(bits) * scales[:, None]).to(to_ptr.dtype.element_ty)
                if ROTARY > 0:
                    source = rotated_ptr + as_int64(block) * (block_bytes // 2)
                    source += as_int64(offset) * (row_bytes // 2)
                    rotated = tl.load(source + r, mask=r < ROTARY, other=0.0)
                    rotated = rotated.to(to_ptr.dtype.element_ty)
        tl.store(to_ptr + i * PADDED + at, values, mask=inside)
        if PADDED > QUANTISED:
            to = to_ptr + i * PADDED + QUANTISED
            tl.store(to + r, rotated, mask=r < PADDED - QUANTISED)


@triton.jit
def _unpack_kernel(
    packed_ptr,
    rotated_ptr,
    block_ptr,
    offset_ptr,
    valid_ptr,
    count,
    block_stride,
    row_stride,
    other_packed_ptr,
    other_rotated_ptr,
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
    QUANTISED: tl.constexpr,
    ROTARY: tl.constexpr,
    GROUPS: tl.constexpr,
    LINES: tl.constexpr,
    LANES: tl.constexpr,
    GROUP: tl.constexpr,
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
                _unpack(
                    packed_ptr,
                    rotated_ptr,
                    block_ptr + at,
                    offset_ptr + at,
                    valid_ptr + at,
                    count - start,
                    to,
                    block_stride,
                    row_stride,
                    QUANTISED,
                    ROTARY,
                    GROUPS,
                    LINES,
                    LANES,
                    GROUP,
                    PADDED,
                    ROWS,
                    MASKED,
                )
            else:
                if TWO:
                    at = as_int64(token) * other_count + start - border
                    _unpack(
                        other_packed_ptr,
                        other_rotated_ptr,
                        other_block_ptr + at,
                        other_offset_ptr + at,
                        other_valid_ptr + at,
                        other_count - (start - border),
                        to,
                        other_block_stride,
                        other_row_stride,
                        QUANTISED,
                        ROTARY,
                        GROUPS,
                        LINES,
                        LANES,
                        GROUP,
                        PADDED,
                        ROWS,
                        OTHER_MASKED,
                    )


def unpack(
    first: torch.Tensor,
    last: torch.Tensor,
    arguments: dict[str, Any],
    constants: dict[str, Any],
    cut: Plan,
    width: int,
    rotary: int,
) -> None:
    """Fill the columns of one or two sources of packed rows.

    Args:
        first: ``[B, P, bytes]`` of the first source.
        last: of the last one.
        arguments: as the kernel that copies plain rows takes them.
        constants: the same.
        cut: the sizes.
        width: values of a row.
        rotary: rotated values at its end.
    """
    packed = {
        "packed_ptr": first,
        "rotated_ptr": rotated_values(first, width, rotary),
        "other_packed_ptr": last,
        "other_rotated_ptr": rotated_values(last, width, rotary),
    }
    given = {name: value for name, value in arguments.items() if not name.endswith("cache_ptr")}
    # What lies between the quantised values and the padded width is written as one line.
    sizes = constants_of(width, rotary, lanes=cut.padded - (width - rotary))
    launch(
        _unpack_kernel,
        arguments["programs"],
        given | packed,
        {**constants, **sizes, "PADDED": cut.padded},
    )
