"""Quantisation of blocks in Triton.

A unit of work is a tile of rows of one block of columns. Where the columns are whole blocks,
1 x 128 blocks are the rows of a matrix of 128 columns.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from ascend_ops_core.devices import current_facts
from ascend_ops_core.kernels import as_int64
from ascend_ops_core.launch import launch
from ascend_ops_core.ops.quantization.formats import LARGEST
from ascend_ops_core.ops.quantization.kernels import (
    divided,
    e4m3_bits,
    e4m3_values,
    e8m0_code,
    e8m0_values,
    magnitude,
    rounded_to_int8,
    times_inverse_power,
)
from ascend_ops_core.tiling import next_power_of_two, tile_rows

_COLUMNS = 128

# Bytes alive per element besides what is loaded and stored, see ops.quantization.rows.kernels.
_LOCAL = {torch.int8: 32, torch.float8_e4m3fn: 40}


@triton.jit
def _code_above(scale, amax):
    """Codes of the smallest powers of two that are not below ``scale``."""
    bits = scale.to(tl.int32, bitcast=True)
    exponent = (bits >> 23) + tl.where((bits & 0x7FFFFF) > 0, 1, 0)
    # Scales below 2^-126 have a fraction without leading one: up to 2^-127 it is at most half.
    exponent = tl.where(bits <= 0x400000, 0, exponent)
    return e8m0_code(exponent, amax)


@triton.jit
def _scaled(amax, min_magnitude, LARGEST: tl.constexpr):
    """Scales of blocks with the largest magnitudes ``amax``, and the codes of the powers above."""
    amax = tl.where(amax < min_magnitude, min_magnitude, amax)
    scale = amax / LARGEST
    return scale, _code_above(scale, amax)


@triton.jit
def _quantized(x, scale, code, POWER: tl.constexpr, FP8: tl.constexpr):
    q = times_inverse_power(x, code) if POWER else divided(x, scale)
    return e4m3_bits(q) if FP8 else rounded_to_int8(q)


@triton.jit
def _row_blocks_kernel(
    x_ptr,
    q_ptr,
    scale_ptr,
    min_magnitude,
    rows,
    row_stride,
    programs,
    WIDTH: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
    LARGEST: tl.constexpr,
    POWER: tl.constexpr,
    FP8: tl.constexpr,
):
    blocks: tl.constexpr = (WIDTH + BLOCK - 1) // BLOCK
    r = tl.arange(0, ROWS)
    for unit in range(tl.program_id(0), programs, tl.num_programs(0)):
        first = as_int64(unit // blocks) * ROWS
        block = unit % blocks
        columns = block * BLOCK + tl.arange(0, BLOCK)
        here = r < rows - first
        mask = here[:, None] & (columns < WIDTH)[None, :]
        tile = x_ptr + first * row_stride + r[:, None] * row_stride + columns[None, :]
        x = tl.load(tile, mask=mask, other=0.0).to(tl.float32)
        amax = tl.max(magnitude(x), axis=1)
        scale, code = _scaled(amax, min_magnitude, LARGEST)
        out = q_ptr + first * WIDTH + r[:, None] * WIDTH + columns[None, :]
        tl.store(out, _quantized(x, scale, code, POWER, FP8), mask=mask)
        scales = scale_ptr + first * blocks + block + r * blocks
        if POWER:
            tl.store(scales, code.to(tl.uint8), mask=here)
        else:
            tl.store(scales, scale, mask=here)


@triton.jit
def _square_blocks_kernel(
    x_ptr,
    q_ptr,
    scale_ptr,
    min_magnitude,
    rows,
    row_stride,
    programs,
    WIDTH: tl.constexpr,
    HEIGHT: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
    LARGEST: tl.constexpr,
    POWER: tl.constexpr,
    FP8: tl.constexpr,
):
    blocks: tl.constexpr = (WIDTH + BLOCK - 1) // BLOCK
    r = tl.arange(0, ROWS)
    for unit in range(tl.program_id(0), programs, tl.num_programs(0)):
        top = as_int64(unit // blocks) * HEIGHT
        columns = (unit % blocks) * BLOCK + tl.arange(0, BLOCK)
        inside = (columns < WIDTH)[None, :]
        largest = tl.zeros((ROWS, BLOCK), tl.float32)
        for step in range(0, HEIGHT, ROWS):
            first = top + step
            mask = (r < rows - first)[:, None] & inside
            tile = x_ptr + first * row_stride + r[:, None] * row_stride + columns[None, :]
            size = magnitude(tl.load(tile, mask=mask, other=0.0).to(tl.float32))
            largest = tl.where(size > largest, size, largest)
        # One value as a vector of one: rows and blocks share the arithmetic.
        amax = tl.max(tl.max(largest, axis=1)[None, :], axis=1)
        scale, code = _scaled(amax, min_magnitude, LARGEST)
        for step in range(0, HEIGHT, ROWS):
            first = top + step
            mask = (r < rows - first)[:, None] & inside
            tile = x_ptr + first * row_stride + r[:, None] * row_stride + columns[None, :]
            x = tl.load(tile, mask=mask, other=0.0).to(tl.float32)
            out = q_ptr + first * WIDTH + r[:, None] * WIDTH + columns[None, :]
            tl.store(out, _quantized(x, scale, code, POWER, FP8), mask=mask)
        if POWER:
            tl.store(scale_ptr + unit + tl.arange(0, 1), code.to(tl.uint8))
        else:
            tl.store(scale_ptr + unit + tl.arange(0, 1), scale)


@triton.jit
def _dequantize_kernel(
    q_ptr,
    scale_ptr,
    out_ptr,
    rows,
    row_stride,
    programs,
    WIDTH: tl.constexpr,
    HEIGHT: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
    POWER: tl.constexpr,
    FP8: tl.constexpr,
):
    blocks: tl.constexpr = (WIDTH + BLOCK - 1) // BLOCK
    r = tl.arange(0, ROWS)
    for unit in range(tl.program_id(0), programs, tl.num_programs(0)):
        first = as_int64(unit // blocks) * ROWS
        block = unit % blocks
        columns = block * BLOCK + tl.arange(0, BLOCK)
        here = r < rows - first
        mask = here[:, None] & (columns < WIDTH)[None, :]
        q = tl.load(
            q_ptr + first * row_stride + r[:, None] * row_stride + columns[None, :], mask=mask
        )
        if HEIGHT == 1:
            scale = tl.load(scale_ptr + first * blocks + block + r * blocks, mask=here, other=0)
        else:
            scale = tl.load(scale_ptr + first // HEIGHT * blocks + block + tl.arange(0, 1))
        if POWER:
            scale = e8m0_values(scale.to(tl.int32))
        value = e4m3_values(q) if FP8 else q.to(tl.float32)
        out = out_ptr + first * WIDTH + r[:, None] * WIDTH + columns[None, :]
        tl.store(out, (value * scale[:, None]).to(out_ptr.dtype.element_ty), mask=mask)


def block_quantize(
    x: torch.Tensor,
    dtype: torch.dtype,
    rows: int,
    scale_dtype: torch.dtype,
    min_magnitude: float,
) -> tuple[torch.Tensor, torch.Tensor]:
    """See :func:`ascend_ops_core.ops.quantization.block_quantize`."""
    q = torch.empty(x.shape, dtype=dtype, device=x.device)
    flat = _matrix(x, rows)
    blocks = -(-flat.shape[1] // _COLUMNS)
    leading = x.shape[:-1] if rows == 1 else (-(-x.shape[0] // rows),)
    scale = torch.empty((*leading, -(-x.shape[-1] // _COLUMNS)), dtype=scale_dtype, device=x.device)
    fp8 = dtype == torch.float8_e4m3fn
    tile = tile_rows(
        current_facts(),
        _COLUMNS,
        streamed=x.element_size() + 1,
        local=_LOCAL[dtype] + (0 if rows == 1 else 4),
        per_row=64,
        maximum=next_power_of_two(flat.shape[0]) if rows == 1 else rows,
    )
    height = tile if rows == 1 else rows
    programs = -(-flat.shape[0] // height) * blocks
    arguments = {
        "x_ptr": flat,
        "q_ptr": q.view(torch.uint8) if fp8 else q,
        "scale_ptr": scale,
        "min_magnitude": min_magnitude,
        "rows": flat.shape[0],
        "row_stride": flat.stride(0),
        "programs": programs,
    }
    constants = {
        "WIDTH": flat.shape[1],
        "ROWS": tile,
        "BLOCK": _COLUMNS,
        "LARGEST": LARGEST[dtype],
        "POWER": scale_dtype == torch.uint8,
        "FP8": fp8,
    }
    if rows == 1:
        launch(_row_blocks_kernel, programs, arguments, constants)
    else:
        launch(_square_blocks_kernel, programs, arguments, constants | {"HEIGHT": rows})
    return q, scale


def block_dequantize(
    q: torch.Tensor, scale: torch.Tensor, rows: int, dtype: torch.dtype
) -> torch.Tensor:
    """See :func:`ascend_ops_core.ops.quantization.block_dequantize`."""
    out = torch.empty(q.shape, dtype=dtype, device=q.device)
    fp8 = q.dtype == torch.float8_e4m3fn
    flat = _matrix(q.view(torch.uint8) if fp8 else q, rows)
    tile = tile_rows(
        current_facts(),
        _COLUMNS,
        streamed=1 + out.element_size(),
        local=_LOCAL[q.dtype],
        per_row=64,
        maximum=next_power_of_two(flat.shape[0]) if rows == 1 else rows,
    )
    programs = -(-flat.shape[0] // tile) * -(-flat.shape[1] // _COLUMNS)
    arguments = {
        "q_ptr": flat,
        "scale_ptr": scale.contiguous(),
        "out_ptr": out,
        "rows": flat.shape[0],
        "row_stride": flat.stride(0),
        "programs": programs,
    }
    constants = {
        "WIDTH": flat.shape[1],
        "HEIGHT": rows,
        "ROWS": tile,
        "BLOCK": _COLUMNS,
        "POWER": scale.dtype == torch.uint8,
        "FP8": fp8,
    }
    launch(_dequantize_kernel, programs, arguments, constants)
    return out


def _matrix(x: torch.Tensor, rows: int) -> torch.Tensor:
    """As a matrix; of 128 columns where each row is whole blocks that lie side by side."""
    if rows == 1 and x.shape[-1] % _COLUMNS == 0:
        return x.reshape(-1, _COLUMNS)
    flat = x.reshape(-1, x.shape[-1])
    return flat if flat.stride(-1) == 1 else flat.contiguous()
