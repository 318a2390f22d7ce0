"""Quantisation of rows in Triton."""

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
    magnitude,
    rounded_to_int8,
    saturated,
)
from ascend_ops_core.ops.quantization.tiles import most_rows
from ascend_ops_core.tiling import SHARE, block_of, next_power_of_two, tile_bytes, tile_rows

# Bytes alive per element besides what is loaded and stored: float32 copies of the value, its
# magnitude, the quotient and its comparison, and the integer steps to eight bits.
_LOCAL = {torch.int8: 32, torch.float8_e4m3fn: 40}


@triton.jit
def _dynamic_kernel(
    x_ptr,
    smooth_ptr,
    q_ptr,
    scale_ptr,
    tokens,
    token_stride,
    head_stride,
    programs,
    HEADS: tl.constexpr,
    WIDTH: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
    LARGEST: tl.constexpr,
    SMOOTH: tl.constexpr,
    FP8: tl.constexpr,
):
    columns = tl.arange(0, BLOCK)
    inside = columns < WIDTH
    r = tl.arange(0, ROWS)
    if SMOOTH:
        smooth = tl.load(smooth_ptr + columns, mask=inside, other=0.0).to(tl.float32)
    for unit in range(tl.program_id(0), programs, tl.num_programs(0)):
        first = as_int64(unit // HEADS) * ROWS
        head = unit % HEADS
        here = r < tokens - first
        mask = here[:, None] & inside[None, :]
        rows = x_ptr + first * token_stride + as_int64(head) * head_stride
        x = tl.load(rows + r[:, None] * token_stride + columns[None, :], mask=mask, other=0.0)
        x = x.to(tl.float32)
        if SMOOTH:
            x = x * smooth[None, :]
        scale = tl.max(magnitude(x), axis=1) / LARGEST
        q = divided(x, scale)
        out = q_ptr + (first * HEADS + head) * WIDTH
        out = out + r[:, None] * (HEADS * WIDTH) + columns[None, :]
        if FP8:
            tl.store(out, e4m3_bits(q), mask=mask)
        else:
            tl.store(out, rounded_to_int8(q), mask=mask)
        tl.store(scale_ptr + first * HEADS + head + r * HEADS, scale, mask=here)


@triton.jit
def _dynamic_wide_kernel(
    x_ptr,
    smooth_ptr,
    q_ptr,
    scale_ptr,
    token_stride,
    head_stride,
    programs,
    HEADS: tl.constexpr,
    WIDTH: tl.constexpr,
    BLOCK: tl.constexpr,
    LARGEST: tl.constexpr,
    SMOOTH: tl.constexpr,
    FP8: tl.constexpr,
):
    for unit in range(tl.program_id(0), programs, tl.num_programs(0)):
        row = x_ptr + as_int64(unit // HEADS) * token_stride + as_int64(unit % HEADS) * head_stride
        out = q_ptr + as_int64(unit) * WIDTH
        largest = tl.zeros((1, BLOCK), tl.float32)
        for start in range(0, WIDTH, BLOCK):
            columns = start + tl.arange(0, BLOCK)[None, :]
            inside = columns < WIDTH
            x = tl.load(row + columns, mask=inside, other=0.0).to(tl.float32)
            if SMOOTH:
                x = x * tl.load(smooth_ptr + columns, mask=inside, other=0.0).to(tl.float32)
            size = magnitude(x)
            largest = tl.where(size > largest, size, largest)
        scale = tl.max(largest, axis=1) / LARGEST
        for start in range(0, WIDTH, BLOCK):
            columns = start + tl.arange(0, BLOCK)[None, :]
            inside = columns < WIDTH
            x = tl.load(row + columns, mask=inside, other=0.0).to(tl.float32)
            if SMOOTH:
                x = x * tl.load(smooth_ptr + columns, mask=inside, other=0.0).to(tl.float32)
            q = divided(x, scale)
            if FP8:
                tl.store(out + columns, e4m3_bits(q), mask=inside)
            else:
                tl.store(out + columns, rounded_to_int8(q), mask=inside)
        tl.store(scale_ptr + as_int64(unit) + tl.arange(0, 1), scale)


@triton.jit
def _static_kernel(
    x_ptr,
    scale_ptr,
    offset_ptr,
    q_ptr,
    rows,
    row_stride,
    programs,
    WIDTH: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
    PER_CHANNEL: tl.constexpr,
    OFFSET: tl.constexpr,
    FP8: tl.constexpr,
):
    blocks: tl.constexpr = (WIDTH + BLOCK - 1) // BLOCK
    r = tl.arange(0, ROWS)
    for unit in range(tl.program_id(0), programs, tl.num_programs(0)):
        first = as_int64(unit // blocks) * ROWS
        columns = (unit % blocks) * BLOCK + tl.arange(0, BLOCK)
        inside = columns < WIDTH
        mask = (r < rows - first)[:, None] & inside[None, :]
        tile = x_ptr + first * row_stride + r[:, None] * row_stride + columns[None, :]
        q = tl.load(tile, mask=mask, other=0.0).to(tl.float32)
        if PER_CHANNEL:
            q = q / tl.load(scale_ptr + columns, mask=inside, other=1.0).to(tl.float32)[None, :]
        else:
            q = q / tl.load(scale_ptr).to(tl.float32)
        if OFFSET:
            if PER_CHANNEL:
                offset = tl.load(offset_ptr + columns, mask=inside, other=0)
                q = q + offset.to(tl.float32)[None, :]
            else:
                q = q + tl.load(offset_ptr).to(tl.float32)
        out = q_ptr + first * WIDTH + r[:, None] * WIDTH + columns[None, :]
        if FP8:
            bits = tl.where(q == q, e4m3_bits(saturated(q, -448.0, 448.0)), 0x7F)
            tl.store(out, bits.to(tl.uint8), mask=mask)
        else:
            q = tl.where(q == q, q, 0.0)
            tl.store(out, rounded_to_int8(saturated(q, -128.0, 127.0)), mask=mask)


def dynamic_quantize(
    x: torch.Tensor, smooth: torch.Tensor | None, dtype: torch.dtype
) -> tuple[torch.Tensor, torch.Tensor]:
    """See :func:`ascend_ops_core.ops.quantization.dynamic_quantize`."""
    width = x.shape[-1]
    q = torch.empty(x.shape, dtype=dtype, device=x.device)
    scale = torch.empty(x.shape[:-1], dtype=torch.float32, device=x.device)
    rows = _as_heads(x)
    tokens, heads = rows.shape[:2]
    fp8 = dtype == torch.float8_e4m3fn
    arguments = {
        "x_ptr": rows,
        "smooth_ptr": None if smooth is None else smooth.contiguous(),
        "q_ptr": q.view(torch.uint8) if fp8 else q,
        "scale_ptr": scale,
        "token_stride": rows.stride(0),
        "head_stride": rows.stride(1),
    }
    constants = {
        "HEADS": heads,
        "WIDTH": width,
        "LARGEST": LARGEST[dtype],
        "SMOOTH": smooth is not None,
        "FP8": fp8,
    }
    facts, padded = current_facts(), next_power_of_two(width)
    sizes = {"streamed": x.element_size() + 1, "local": _LOCAL[dtype]}
    fixed = 0 if smooth is None else 8 * padded
    if tile_bytes(padded, fixed=fixed, **sizes) > facts.ub_bytes * SHARE:
        block = block_of(facts, maximum=padded, **sizes | {"streamed": sizes["streamed"] + 4})
        arguments["programs"] = tokens * heads
        launch(_dynamic_wide_kernel, tokens * heads, arguments, constants | {"BLOCK": block})
        return q, scale
    tile = tile_rows(
        facts,
        padded,
        fixed=fixed,
        per_row=64,
        maximum=most_rows(facts, dtype, padded, tokens),
        **sizes,
    )
    programs = -(-tokens // tile) * heads
    arguments |= {"tokens": tokens, "programs": programs}
    launch(_dynamic_kernel, programs, arguments, constants | {"BLOCK": padded, "ROWS": tile})
    return q, scale


def static_quantize(
    x: torch.Tensor, scale: torch.Tensor, offset: torch.Tensor | None, dtype: torch.dtype
) -> torch.Tensor:
    """See :func:`ascend_ops_core.ops.quantization.static_quantize`."""
    width = x.shape[-1]
    rows = x.reshape(-1, width)
    if rows.stride(-1) != 1:
        rows = rows.contiguous()
    q = torch.empty(x.shape, dtype=dtype, device=x.device)
    fp8 = dtype == torch.float8_e4m3fn
    facts = current_facts()
    sizes = {"streamed": x.element_size() + 1, "local": _LOCAL[dtype]}
    block = block_of(facts, maximum=next_power_of_two(width), minimum=1, **sizes)
    tile = tile_rows(facts, block, maximum=most_rows(facts, dtype, block, rows.shape[0]), **sizes)
    programs = -(-rows.shape[0] // tile) * -(-width // block)
    arguments = {
        "x_ptr": rows,
        "scale_ptr": scale.contiguous(),
        "offset_ptr": None if offset is None else offset.contiguous(),
        "q_ptr": q.view(torch.uint8) if fp8 else q,
        "rows": rows.shape[0],
        "row_stride": rows.stride(0),
        "programs": programs,
    }
    constants = {
        "WIDTH": width,
        "ROWS": tile,
        "BLOCK": block,
        "PER_CHANNEL": scale.shape[0] > 1,
        "OFFSET": offset is not None,
        "FP8": fp8,
    }
    launch(_static_kernel, programs, arguments, constants)
    return q


def _as_heads(x: torch.Tensor) -> torch.Tensor:
    """``[T, H, D]`` over the same memory if strides allow; one head if rows are evenly apart."""
    if x.stride(-1) != 1:
        x = x.contiguous()
    if x.dim() == 3 and x.stride(0) != x.shape[1] * x.stride(1):
        return x
    return x.reshape(-1, 1, x.shape[-1])
