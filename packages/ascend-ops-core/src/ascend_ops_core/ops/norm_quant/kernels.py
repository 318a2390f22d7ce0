"""The quantising norms in Triton: narrow rows by tiles, wider ones one by one."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from ascend_ops_core.devices import current_facts
from ascend_ops_core.kernels import as_int64, nearest_int8
from ascend_ops_core.launch import launch
from ascend_ops_core.ops.norm.kernels import normed_tile, prepared, summed, vector
from ascend_ops_core.tiling import SHARE, block_of, next_power_of_two, tile_bytes, tile_rows

# float32 values alive per element: row, square or magnitude, the norm, the quotient, and the int8
# turned around for a two-dimensional store.
_LIVE_BYTES = 32
# A2's compiler pads an int8 tile to this many rows, so that one of fewer rows does not pay.
_LEAST_ROWS = 32


@triton.jit
def _as_int8(y, scale):
    return nearest_int8(y / tl.where(scale > 0, scale, 1.0))


@triton.jit
def _norm_quant_kernel(
    x_ptr,
    residual_ptr,
    weight_ptr,
    bias_ptr,
    smooth_ptr,
    out_ptr,
    scale_ptr,
    sum_ptr,
    rows,
    row_stride,
    residual_stride,
    eps,
    programs,
    WIDTH: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
    WEIGHTED: tl.constexpr,
    BIASED: tl.constexpr,
    SMOOTHED: tl.constexpr,
    ADDED: tl.constexpr,
):
    columns = tl.arange(0, BLOCK)
    inside = columns < WIDTH
    weight = vector(weight_ptr, columns, inside, 1.0, WEIGHTED)
    bias = vector(bias_ptr, columns, inside, 0.0, BIASED)
    smooth = vector(smooth_ptr, columns, inside, 1.0, SMOOTHED)
    for unit in range(tl.program_id(0), programs, tl.num_programs(0)):
        first = as_int64(unit) * ROWS
        y, here, mask = normed_tile(
            x_ptr, residual_ptr, sum_ptr, weight, bias, first, rows, row_stride, residual_stride,
            eps, WIDTH, ROWS, BLOCK, WEIGHTED, BIASED, ADDED, False,
        )  # fmt: skip
        if SMOOTHED:
            y = y * smooth[None, :]
        r = tl.arange(0, ROWS)
        scale = tl.max(tl.abs(y), axis=1) / 127.0
        tl.store(out_ptr + here, _as_int8(y, scale[:, None]), mask=mask)
        tl.store(scale_ptr + first + r, scale, mask=r < rows - first)


@triton.jit
def _adjusted(
    y,
    weight_ptr,
    bias_ptr,
    smooth_ptr,
    columns,
    inside,
    WEIGHTED: tl.constexpr,
    BIASED: tl.constexpr,
    SMOOTHED: tl.constexpr,
):
    if WEIGHTED:
        y = y * vector(weight_ptr, columns, inside, 1.0, True)
    if BIASED:
        y = y + vector(bias_ptr, columns, inside, 0.0, True)
    if SMOOTHED:
        y = y * vector(smooth_ptr, columns, inside, 1.0, True)
    return y


@triton.jit
def _wide_norm_quant_kernel(
    x_ptr,
    residual_ptr,
    weight_ptr,
    bias_ptr,
    smooth_ptr,
    out_ptr,
    scale_ptr,
    sum_ptr,
    row_stride,
    residual_stride,
    eps,
    programs,
    WIDTH: tl.constexpr,
    BLOCK: tl.constexpr,
    WEIGHTED: tl.constexpr,
    BIASED: tl.constexpr,
    SMOOTHED: tl.constexpr,
    ADDED: tl.constexpr,
):
    for unit in range(tl.program_id(0), programs, tl.num_programs(0)):
        row = x_ptr + as_int64(unit) * row_stride
        other = residual_ptr + as_int64(unit) * residual_stride
        here = as_int64(unit) * WIDTH
        squares = tl.zeros((BLOCK,), tl.float32)
        for start in range(0, WIDTH, BLOCK):
            columns = start + tl.arange(0, BLOCK)
            inside = columns < WIDTH
            x = summed(row, other, columns, inside, ADDED)
            if ADDED:
                tl.store(sum_ptr + here + columns, x.to(sum_ptr.dtype.element_ty), mask=inside)
            squares += x * x
        norm = 1.0 / tl.sqrt(tl.sum(squares, axis=0) / WIDTH + eps)
        largest = tl.zeros((BLOCK,), tl.float32)
        for start in range(0, WIDTH, BLOCK):
            columns = start + tl.arange(0, BLOCK)
            inside = columns < WIDTH
            y = summed(row, other, columns, inside, ADDED) * norm
            y = _adjusted(
                y, weight_ptr, bias_ptr, smooth_ptr, columns, inside, WEIGHTED, BIASED, SMOOTHED
            )
            largest = tl.where(tl.abs(y) > largest, tl.abs(y), largest)
        scale = tl.max(largest, axis=0) / 127.0
        tl.store(scale_ptr + unit, scale)
        for start in range(0, WIDTH, BLOCK):
            columns = start + tl.arange(0, BLOCK)
            inside = columns < WIDTH
            y = summed(row, other, columns, inside, ADDED) * norm
            y = _adjusted(
                y, weight_ptr, bias_ptr, smooth_ptr, columns, inside, WEIGHTED, BIASED, SMOOTHED
            )
            tl.store(out_ptr + here + columns, _as_int8(y, scale), mask=inside)


def rms_norm_dynamic_quant(
    x: torch.Tensor,
    weight: torch.Tensor | None,
    bias: torch.Tensor | None,
    smooth_scale: torch.Tensor | None,
    eps: float,
) -> tuple[torch.Tensor, torch.Tensor]:
    """See :func:`ascend_ops_core.ops.norm_quant.rms_norm_dynamic_quant`."""
    return _norm_quant(x, None, None, weight, bias, smooth_scale, eps)


def add_rms_norm_dynamic_quant(
    x: torch.Tensor,
    residual: torch.Tensor,
    weight: torch.Tensor | None,
    bias: torch.Tensor | None,
    smooth_scale: torch.Tensor | None,
    eps: float,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """See :func:`ascend_ops_core.ops.norm_quant.add_rms_norm_dynamic_quant`."""
    total = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    values, scale = _norm_quant(x, residual, total, weight, bias, smooth_scale, eps)
    return values, scale, total


def _norm_quant(
    x: torch.Tensor,
    residual: torch.Tensor | None,
    total: torch.Tensor | None,
    weight: torch.Tensor | None,
    bias: torch.Tensor | None,
    smooth_scale: torch.Tensor | None,
    eps: float,
) -> tuple[torch.Tensor, torch.Tensor]:
    out = torch.empty(x.shape, dtype=torch.int8, device=x.device)
    scale = torch.empty(x.shape[:-1], dtype=torch.float32, device=x.device)
    arguments, constants = prepared(x, residual, total, weight, bias, out, eps)
    rows = arguments["x_ptr"]
    arguments |= {
        "smooth_ptr": rows if smooth_scale is None else smooth_scale,
        "scale_ptr": scale,
    }
    constants["SMOOTHED"] = smooth_scale is not None
    count, width = rows.shape
    facts, padded = current_facts(), next_power_of_two(width)
    streamed = 1 + x.element_size() * (1 if residual is None else 3)
    least = tile_bytes(_LEAST_ROWS * padded, streamed=streamed, local=_LIVE_BYTES)
    if count < _LEAST_ROWS or least > facts.ub_bytes * SHARE:
        block = block_of(facts, streamed=streamed, local=_LIVE_BYTES, maximum=padded)
        arguments["programs"] = count
        launch(_wide_norm_quant_kernel, count, arguments, constants | {"BLOCK": block})
        return out, scale
    maximum = next_power_of_two(count)
    tile = tile_rows(
        facts,
        padded,
        streamed=streamed,
        local=_LIVE_BYTES,
        minimum=_LEAST_ROWS,
        maximum=maximum,
    )
    programs = -(-count // tile)
    arguments |= {"rows": count, "programs": programs}
    launch(_norm_quant_kernel, programs, arguments, constants | {"BLOCK": padded, "ROWS": tile})
    return out, scale
