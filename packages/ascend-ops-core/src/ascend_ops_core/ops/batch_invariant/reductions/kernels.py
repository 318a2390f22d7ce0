"""Batch-invariant reductions of rows in Triton.

A tile has the same size whatever the number of rows, a row never shares a sum with another, and
the blocks of the summed axis are added in order. So a row takes the same steps in every batch.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl

from ascend_ops_core.devices import current_facts
from ascend_ops_core.kernels import as_int64
from ascend_ops_core.launch import launch
from ascend_ops_core.tiling import SHARE, block_of, next_power_of_two, tile_bytes, tile_rows

# float32 values alive per element of a row: loaded, intermediate (three times), result; softmax
# keeps two more and the masks of its comparisons.
_LIVE_BYTES = 20
_SOFTMAX_LIVE_BYTES = 32
_MOST_ROWS = 16


@triton.jit
def _mean_rows_kernel(
    x_ptr,
    out_ptr,
    rows,
    row_stride,
    programs,
    WIDTH: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    for unit in range(tl.program_id(0), programs, tl.num_programs(0)):
        first = as_int64(unit) * ROWS
        r = tl.arange(0, ROWS)
        real = r < rows - first
        total = tl.zeros((ROWS,), tl.float32)
        for start in range(0, WIDTH, BLOCK):
            columns = start + tl.arange(0, BLOCK)
            tile = x_ptr + first * row_stride + r[:, None] * row_stride + columns[None, :]
            mask = real[:, None] & (columns < WIDTH)[None, :]
            total += tl.sum(tl.load(tile, mask=mask, other=0.0).to(tl.float32), axis=1)
        mean = total * (1.0 / WIDTH)
        tl.store(out_ptr + first + r, mean.to(out_ptr.dtype.element_ty), mask=real)


@triton.jit
def _mean_columns_kernel(
    x_ptr,
    out_ptr,
    inner,
    strips,
    programs,
    WIDTH: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    for unit in range(tl.program_id(0), programs, tl.num_programs(0)):
        outer = unit // strips
        first = (unit - outer * strips) * BLOCK
        r = tl.arange(0, ROWS)
        c = tl.arange(0, BLOCK)
        real = c < inner - first
        tile = x_ptr + as_int64(outer) * WIDTH * inner + first
        total = tl.zeros((ROWS, BLOCK), tl.float32)
        for start in range(0, WIDTH, ROWS):
            mask = (r < WIDTH - start)[:, None] & real[None, :]
            part = tile + as_int64(start) * inner + r[:, None] * inner + c[None, :]
            total += tl.load(part, mask=mask, other=0.0).to(tl.float32)
        mean = tl.sum(total, axis=0) * (1.0 / WIDTH)
        tl.store(
            out_ptr + as_int64(outer) * inner + first + c,
            mean.to(out_ptr.dtype.element_ty),
            mask=real,
        )


def mean_batch_invariant(x: torch.Tensor, dim: int, keepdim: bool) -> torch.Tensor:
    """See :func:`ascend_ops_core.ops.batch_invariant.mean_batch_invariant`."""
    dim %= x.dim()
    width = x.shape[dim]
    kept = [*x.shape[:dim], *([1] if keepdim else []), *x.shape[dim + 1 :]]
    out = torch.empty(kept, dtype=x.dtype, device=x.device)
    if dim == x.dim() - 1:
        rows, tile, block = _rows_and_tile(x)
        _launch_rows(_mean_rows_kernel, rows, {"x_ptr": rows, "out_ptr": out}, tile, block)
        return out
    x = x.contiguous()
    inner = 1
    for size in x.shape[dim + 1 :]:
        inner *= size
    block, height = 64, min(next_power_of_two(width), 64)
    strips = -(-inner // block)
    programs = out.numel() // max(inner, 1) * strips
    launch(
        _mean_columns_kernel,
        programs,
        {"x_ptr": x, "out_ptr": out, "inner": inner, "strips": strips, "programs": programs},
        {"WIDTH": width, "ROWS": height, "BLOCK": block},
    )
    return out


@triton.jit
def _rms_norm_kernel(
    x_ptr,
    weight_ptr,
    out_ptr,
    rows,
    row_stride,
    eps,
    programs,
    WIDTH: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
    WEIGHTED: tl.constexpr,
):
    whole: tl.constexpr = BLOCK >= WIDTH
    c = tl.arange(0, BLOCK)
    weight = tl.full((BLOCK,), 1.0, tl.float32)
    if WEIGHTED and whole:
        weight = tl.load(weight_ptr + c, mask=c < WIDTH, other=0.0).to(tl.float32)
    for unit in range(tl.program_id(0), programs, tl.num_programs(0)):
        first = as_int64(unit) * ROWS
        r = tl.arange(0, ROWS)
        real = (r < rows - first)[:, None]
        tile = x_ptr + first * row_stride + r[:, None] * row_stride + c[None, :]
        out = out_ptr + first * WIDTH + r[:, None] * WIDTH + c[None, :]
        if whole:
            mask = real & (c < WIDTH)[None, :]
            x = tl.load(tile, mask=mask, other=0.0).to(tl.float32)
            scale = 1.0 / tl.sqrt(tl.sum(x * x, axis=1) / WIDTH + eps)
            y = x * scale[:, None] * weight[None, :]
            tl.store(out, y.to(out_ptr.dtype.element_ty), mask=mask)
        else:
            squares = tl.zeros((ROWS, BLOCK), tl.float32)
            for start in range(0, WIDTH, BLOCK):
                mask = real & (c < WIDTH - start)[None, :]
                x = tl.load(tile + start, mask=mask, other=0.0).to(tl.float32)
                squares += x * x
            scale = 1.0 / tl.sqrt(tl.sum(squares, axis=1) / WIDTH + eps)
            for start in range(0, WIDTH, BLOCK):
                inside = c < WIDTH - start
                mask = real & inside[None, :]
                y = tl.load(tile + start, mask=mask, other=0.0).to(tl.float32) * scale[:, None]
                if WEIGHTED:
                    part = tl.load(weight_ptr + start + c, mask=inside, other=0.0)
                    y = y * part.to(tl.float32)[None, :]
                tl.store(out + start, y.to(out_ptr.dtype.element_ty), mask=mask)


def rms_norm_batch_invariant(
    x: torch.Tensor, weight: torch.Tensor | None, eps: float
) -> torch.Tensor:
    """See :func:`ascend_ops_core.ops.batch_invariant.rms_norm_batch_invariant`."""
    out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    rows, tile, block = _rows_and_tile(x)
    arguments = {
        "x_ptr": rows,
        "weight_ptr": rows if weight is None else weight,
        "out_ptr": out,
        "eps": eps,
    }
    constants = {"WEIGHTED": weight is not None}
    _launch_rows(_rms_norm_kernel, rows, arguments, tile, block, constants)
    return out


@triton.jit
def _softmax_kernel(
    x_ptr,
    out_ptr,
    rows,
    row_stride,
    programs,
    WIDTH: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    whole: tl.constexpr = BLOCK >= WIDTH
    c = tl.arange(0, BLOCK)
    for unit in range(tl.program_id(0), programs, tl.num_programs(0)):
        first = as_int64(unit) * ROWS
        r = tl.arange(0, ROWS)
        real = (r < rows - first)[:, None]
        tile = x_ptr + first * row_stride + r[:, None] * row_stride + c[None, :]
        out = out_ptr + first * WIDTH + r[:, None] * WIDTH + c[None, :]
        if whole:
            mask = real & (c < WIDTH)[None, :]
            x = tl.load(tile, mask=mask, other=float("-inf")).to(tl.float32)
            # Rows that are not there give NaN, which is not stored.
            e = tl.exp(x - tl.max(x, axis=1)[:, None])
            y = e * (1.0 / tl.sum(e, axis=1))[:, None]
            tl.store(out, y.to(out_ptr.dtype.element_ty), mask=mask)
        else:
            highest = tl.full((ROWS, BLOCK), float("-inf"), tl.float32)
            for start in range(0, WIDTH, BLOCK):
                mask = real & (c < WIDTH - start)[None, :]
                x = tl.load(tile + start, mask=mask, other=float("-inf")).to(tl.float32)
                highest = tl.where(x > highest, x, highest)
            top = tl.max(highest, axis=1)
            sums = tl.zeros((ROWS, BLOCK), tl.float32)
            for start in range(0, WIDTH, BLOCK):
                mask = real & (c < WIDTH - start)[None, :]
                x = tl.load(tile + start, mask=mask, other=float("-inf")).to(tl.float32)
                sums += tl.exp(x - top[:, None])
            share = 1.0 / tl.sum(sums, axis=1)
            for start in range(0, WIDTH, BLOCK):
                mask = real & (c < WIDTH - start)[None, :]
                x = tl.load(tile + start, mask=mask, other=float("-inf")).to(tl.float32)
                y = tl.exp(x - top[:, None]) * share[:, None]
                tl.store(out + start, y.to(out_ptr.dtype.element_ty), mask=mask)


def softmax_batch_invariant(x: torch.Tensor, dim: int) -> torch.Tensor:
    """See :func:`ascend_ops_core.ops.batch_invariant.softmax_batch_invariant`."""
    turned = x.transpose(dim, -1).contiguous()
    out = torch.empty(turned.shape, dtype=x.dtype, device=x.device)
    rows, tile, block = _rows_and_tile(turned, _SOFTMAX_LIVE_BYTES)
    _launch_rows(_softmax_kernel, rows, {"x_ptr": rows, "out_ptr": out}, tile, block)
    return out.transpose(dim, -1)


def _rows_and_tile(x: torch.Tensor, live_bytes: int = _LIVE_BYTES) -> tuple[torch.Tensor, int, int]:
    """``x`` as rows, and a tile that its width, dtype and device decide."""
    width = x.shape[-1]
    rows = x.reshape(-1, width)
    if rows.stride(-1) != 1:
        rows = rows.contiguous()
    facts, padded = current_facts(), next_power_of_two(width)
    sizes = {"streamed": 2 * x.element_size(), "local": live_bytes}
    if tile_bytes(padded, **sizes) > facts.ub_bytes * SHARE:
        return rows, 1, block_of(facts, **sizes, maximum=padded)
    return rows, tile_rows(facts, padded, **sizes, maximum=_MOST_ROWS), padded


def _launch_rows(
    kernel: Any,
    rows: torch.Tensor,
    arguments: dict[str, Any],
    tile: int,
    block: int,
    constants: dict[str, Any] | None = None,
) -> None:
    programs = -(-rows.shape[0] // tile)
    arguments |= {"rows": rows.shape[0], "row_stride": rows.stride(0), "programs": programs}
    shape = {"WIDTH": rows.shape[1], "ROWS": tile, "BLOCK": block}
    launch(kernel, programs, arguments, shape | (constants or {}))
