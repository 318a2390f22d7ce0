"""Rows of a rotary table in Triton: a scalar position, then a row by DMA."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import triton
import triton.language as tl

from ascend_ops_core.kernels import as_int64
from ascend_ops_core.launch import launch
from ascend_ops_core.tiling import next_power_of_two


@triton.jit
def _row(
    table_ptr,
    position,
    rows,
    row_stride,
    PAIRS: tl.constexpr,
    BLOCK: tl.constexpr,
    BITS: tl.constexpr,
):
    """A row of the table; NaN for a position outside, which nothing is read for.

    BITS: the table holds the bits of bfloat16, as int16.
    """
    columns = tl.arange(0, BLOCK)
    width = tl.where((position >= 0) & (position < rows), PAIRS, 0)
    row = table_ptr + as_int64(position) * row_stride
    outside: tl.constexpr = 0x7FC0 if BITS else float("nan")
    return tl.load(row + columns, mask=columns < width, other=outside)


@triton.jit
def _gather_kernel(
    cos_ptr,
    sin_ptr,
    positions_ptr,
    cos_out_ptr,
    sin_out_ptr,
    rows,
    row_stride,
    programs,
    PAIRS: tl.constexpr,
    BLOCK: tl.constexpr,
    BITS: tl.constexpr,
):
    columns = tl.arange(0, BLOCK)
    for unit in range(tl.program_id(0), programs, tl.num_programs(0)):
        position = tl.load(positions_ptr + unit)
        out = as_int64(unit) * PAIRS + columns
        cos = _row(cos_ptr, position, rows, row_stride, PAIRS, BLOCK, BITS)
        tl.store(cos_out_ptr + out, cos, mask=columns < PAIRS)
        sin = _row(sin_ptr, position, rows, row_stride, PAIRS, BLOCK, BITS)
        tl.store(sin_out_ptr + out, sin, mask=columns < PAIRS)


@triton.jit
def _pick(kind, time, height, width):
    return tl.where(kind == 0, time, tl.where(kind == 1, height, width))


@triton.jit
def _mrope_kernel(
    cos_ptr,
    sin_ptr,
    positions_ptr,
    cos_out_ptr,
    sin_out_ptr,
    rows,
    row_stride,
    tokens,
    programs,
    PAIRS: tl.constexpr,
    BLOCK: tl.constexpr,
    TIME: tl.constexpr,
    HEIGHT: tl.constexpr,
    WIDTH: tl.constexpr,
    INTERLEAVED: tl.constexpr,
    BITS: tl.constexpr,
):
    columns = tl.arange(0, BLOCK)
    if INTERLEAVED:
        # columns // 3 without a division, exact below 2^15.
        turn = columns - ((columns * 21846) >> 16) * 3
        kind = tl.where((turn == 1) & (columns < 3 * HEIGHT), 1, 0)
        kind = tl.where((turn == 2) & (columns < 3 * WIDTH), 2, kind)
    else:
        kind = tl.where(columns < TIME, 0, tl.where(columns < TIME + HEIGHT, 1, 2))
    for unit in range(tl.program_id(0), programs, tl.num_programs(0)):
        t = tl.load(positions_ptr + unit)
        h = tl.load(positions_ptr + tokens + unit)
        w = tl.load(positions_ptr + 2 * tokens + unit)
        out = as_int64(unit) * PAIRS + columns
        cos = _pick(
            kind,
            _row(cos_ptr, t, rows, row_stride, PAIRS, BLOCK, BITS),
            _row(cos_ptr, h, rows, row_stride, PAIRS, BLOCK, BITS),
            _row(cos_ptr, w, rows, row_stride, PAIRS, BLOCK, BITS),
        )
        tl.store(cos_out_ptr + out, cos, mask=columns < PAIRS)
        sin = _pick(
            kind,
            _row(sin_ptr, t, rows, row_stride, PAIRS, BLOCK, BITS),
            _row(sin_ptr, h, rows, row_stride, PAIRS, BLOCK, BITS),
            _row(sin_ptr, w, rows, row_stride, PAIRS, BLOCK, BITS),
        )
        tl.store(sin_out_ptr + out, sin, mask=columns < PAIRS)


def gather_cos_sin(
    cos: torch.Tensor, sin: torch.Tensor, positions: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """See :func:`ascend_ops_core.ops.rotary_table.gather_cos_sin`."""
    arguments, constants, out = _prepared(cos, sin, positions)
    launch(_gather_kernel, arguments["programs"], arguments, constants)
    return out


def mrope_cos_sin(
    cos: torch.Tensor,
    sin: torch.Tensor,
    positions: torch.Tensor,
    sections: Sequence[int],
    interleaved: bool,
) -> tuple[torch.Tensor, torch.Tensor]:
    """See :func:`ascend_ops_core.ops.rotary_table.mrope_cos_sin`."""
    arguments, constants, out = _prepared(cos, sin, positions)
    time, height, width = sections
    constants |= {"TIME": time, "HEIGHT": height, "WIDTH": width, "INTERLEAVED": interleaved}
    arguments["tokens"] = positions.shape[1]
    launch(_mrope_kernel, arguments["programs"], arguments, constants)
    return out


def _prepared(
    cos: torch.Tensor, sin: torch.Tensor, positions: torch.Tensor
) -> tuple[dict[str, Any], dict[str, int | bool], tuple[torch.Tensor, torch.Tensor]]:
    tokens, pairs = positions.shape[-1], cos.shape[1]
    out = (
        torch.empty(tokens, pairs, dtype=cos.dtype, device=cos.device),
        torch.empty(tokens, pairs, dtype=cos.dtype, device=cos.device),
    )
    # Both may be halves of one table, which nobody wants copied.
    if cos.stride() != sin.stride() or cos.stride(1) != 1:
        cos, sin = cos.contiguous(), sin.contiguous()
    # The compiler for A5 ends with invalid IR at a tile full of bfloat16's NaN, not at its bits.
    bits = cos.dtype == torch.bfloat16
    tables = (cos, sin, *out)
    cos, sin, cos_out, sin_out = (one.view(torch.int16) if bits else one for one in tables)
    arguments: dict[str, Any] = {
        "cos_ptr": cos,
        "sin_ptr": sin,
        "positions_ptr": positions.contiguous(),
        "cos_out_ptr": cos_out,
        "sin_out_ptr": sin_out,
        "rows": cos.shape[0],
        "row_stride": cos.stride(0),
        "programs": tokens,
    }
    return arguments, {"PAIRS": pairs, "BLOCK": next_power_of_two(pairs), "BITS": bits}, out
