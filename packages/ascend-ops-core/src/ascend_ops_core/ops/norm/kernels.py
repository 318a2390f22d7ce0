"""The norms in Triton: one kernel for rows that fit into the unified buffer, one for wider rows."""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl

from ascend_ops_core.devices import current_facts
from ascend_ops_core.kernels import as_int64
from ascend_ops_core.launch import launch
from ascend_ops_core.tiling import block_of, next_power_of_two, tile_bytes, tile_rows

# Bytes alive per element besides what is loaded and stored: the row in float32 and its square or
# product, of which a mean or a sum with a residual keeps one more. The compile check measures that
# tiles which fill this share by the estimate fit.
_LIVE_BYTES = 10
_LIVE_BYTES_OF_MORE = 16
_SHARE = 0.9


@triton.jit
def normalized(x, inside, eps, WIDTH: tl.constexpr, CENTERED: tl.constexpr):
    """Rows of a float32 tile divided by their RMS, after subtracting their mean if CENTERED.

    What lies beyond WIDTH must be 0 and stays 0.
    """
    if CENTERED:
        x = x - (tl.sum(x, axis=1) / WIDTH)[:, None]
        x = tl.where(inside[None, :], x, 0.0)
    scale = 1.0 / tl.sqrt(tl.sum(x * x, axis=1) / WIDTH + eps)
    return x * scale[:, None]


@triton.jit
def vector(ptr, columns, inside, neutral, GIVEN: tl.constexpr):
    """A weight or bias as float32, or a constant where there is none."""
    values = tl.full(columns.shape, neutral, tl.float32)
    if GIVEN:
        values = tl.load(ptr + columns, mask=inside, other=0.0).to(tl.float32)
    return values


@triton.jit
def summed(x, residual, columns, inside, ADDED: tl.constexpr):
    """Rows as float32, or their sum with those of a residual, rounded to the dtype of ``x``."""
    values = tl.load(x + columns, mask=inside, other=0.0)
    if ADDED:
        other = tl.load(residual + columns, mask=inside, other=0.0).to(tl.float32)
        values = (values.to(tl.float32) + other).to(values.dtype)
    return values.to(tl.float32)


@triton.jit
def normed_tile(
    x_ptr,
    residual_ptr,
    sum_ptr,
    weight,
    bias,
    first,
    rows,
    row_stride,
    residual_stride,
    eps,
    WIDTH: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
    WEIGHTED: tl.constexpr,
    BIASED: tl.constexpr,
    ADDED: tl.constexpr,
    CENTERED: tl.constexpr,
):
    """Norm of ``ROWS`` rows from ``first`` on; if ADDED, of their sums with a residual's, stored.

    Returns it in float32, the places of a contiguous result, and which of them there are.
    """
    columns = tl.arange(0, BLOCK)
    inside = columns < WIDTH
    r = tl.arange(0, ROWS)
    mask = (r < rows - first)[:, None] & inside[None, :]
    here = first * WIDTH + r[:, None] * WIDTH + columns[None, :]
    tile = x_ptr + first * row_stride + r[:, None] * row_stride
    other = residual_ptr + first * residual_stride + r[:, None] * residual_stride
    x = summed(tile, other, columns[None, :], mask, ADDED)
    if ADDED:
        tl.store(sum_ptr + here, x.to(sum_ptr.dtype.element_ty), mask=mask)
    y = normalized(x, inside, eps, WIDTH, CENTERED)
    if WEIGHTED:
        y = y * weight[None, :]
    if BIASED:
        y = y + bias[None, :]
    return y, here, mask


@triton.jit
def _norm_kernel(
    x_ptr,
    residual_ptr,
    weight_ptr,
    bias_ptr,
    out_ptr,
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
    ADDED: tl.constexpr,
    CENTERED: tl.constexpr,
    OFFSET: tl.constexpr,
):
    columns = tl.arange(0, BLOCK)
    inside = columns < WIDTH
    weight = vector(weight_ptr, columns, inside, 1.0, WEIGHTED)
    if OFFSET != 0.0:
        weight = weight + OFFSET
    bias = vector(bias_ptr, columns, inside, 0.0, BIASED)
    for unit in range(tl.program_id(0), programs, tl.num_programs(0)):
        first = as_int64(unit) * ROWS
        y, here, mask = normed_tile(
            x_ptr, residual_ptr, sum_ptr, weight, bias, first, rows, row_stride, residual_stride,
            eps, WIDTH, ROWS, BLOCK, WEIGHTED, BIASED, ADDED, CENTERED,
        )  # fmt: skip
        tl.store(out_ptr + here, y.to(out_ptr.dtype.element_ty), mask=mask)


@triton.jit
def _wide_norm_kernel(
    x_ptr,
    residual_ptr,
    weight_ptr,
    bias_ptr,
    out_ptr,
    sum_ptr,
    row_stride,
    residual_stride,
    eps,
    programs,
    WIDTH: tl.constexpr,
    BLOCK: tl.constexpr,
    WEIGHTED: tl.constexpr,
    BIASED: tl.constexpr,
    ADDED: tl.constexpr,
    CENTERED: tl.constexpr,
    OFFSET: tl.constexpr,
):
    for unit in range(tl.program_id(0), programs, tl.num_programs(0)):
        row = x_ptr + as_int64(unit) * row_stride
        other = residual_ptr + as_int64(unit) * residual_stride
        here = as_int64(unit) * WIDTH
        mean = 0.0
        if CENTERED:
            totals = tl.zeros((BLOCK,), tl.float32)
            for start in range(0, WIDTH, BLOCK):
                columns = start + tl.arange(0, BLOCK)
                totals += summed(row, other, columns, columns < WIDTH, ADDED)
            mean = tl.sum(totals, axis=0) / WIDTH
        squares = tl.zeros((BLOCK,), tl.float32)
        for start in range(0, WIDTH, BLOCK):
            columns = start + tl.arange(0, BLOCK)
            x = summed(row, other, columns, columns < WIDTH, ADDED)
            if CENTERED:
                x = tl.where(columns < WIDTH, x - mean, 0.0)
            squares += x * x
        scale = 1.0 / tl.sqrt(tl.sum(squares, axis=0) / WIDTH + eps)
        for start in range(0, WIDTH, BLOCK):
            columns = start + tl.arange(0, BLOCK)
            inside = columns < WIDTH
            x = summed(row, other, columns, inside, ADDED)
            if ADDED:
                tl.store(sum_ptr + here + columns, x.to(sum_ptr.dtype.element_ty), mask=inside)
            y = (x - mean) * scale
            if WEIGHTED:
                y = y * (vector(weight_ptr, columns, inside, 1.0, True) + OFFSET)
            if BIASED:
                y = y + vector(bias_ptr, columns, inside, 0.0, True)
            tl.store(out_ptr + here + columns, y.to(out_ptr.dtype.element_ty), mask=inside)


def rms_norm(x: torch.Tensor, weight: torch.Tensor | None, eps: float) -> torch.Tensor:
    """See :func:`ascend_ops_core.ops.norm.rms_norm`."""
    return _norm(x, weight, None, eps)


def rms_norm_bias(
    x: torch.Tensor, weight: torch.Tensor | None, bias: torch.Tensor, eps: float
) -> torch.Tensor:
    """See :func:`ascend_ops_core.ops.norm.rms_norm_bias`."""
    return _norm(x, weight, bias, eps)


def gemma_rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """See :func:`ascend_ops_core.ops.norm.gemma_rms_norm`."""
    return _norm(x, weight, None, eps, offset=1.0)


def layer_norm(
    x: torch.Tensor, weight: torch.Tensor | None, bias: torch.Tensor | None, eps: float
) -> torch.Tensor:
    """See :func:`ascend_ops_core.ops.norm.layer_norm`."""
    return _norm(x, weight, bias, eps, centered=True)


def add_rms_norm(
    x: torch.Tensor,
    residual: torch.Tensor,
    weight: torch.Tensor | None,
    bias: torch.Tensor | None,
    eps: float,
) -> tuple[torch.Tensor, torch.Tensor]:
    """See :func:`ascend_ops_core.ops.norm.add_rms_norm`."""
    total = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    return _norm(x, weight, bias, eps, residual=residual, total=total), total


def rows_of(x: torch.Tensor) -> torch.Tensor:
    """``[rows, width]`` with contiguous rows; a view wherever the strides allow it."""
    rows = x.reshape(-1, x.shape[-1])
    return rows if rows.stride(-1) == 1 else rows.contiguous()


def prepared(
    x: torch.Tensor,
    residual: torch.Tensor | None,
    total: torch.Tensor | None,
    weight: torch.Tensor | None,
    bias: torch.Tensor | None,
    out: torch.Tensor,
    eps: float,
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Arguments and constants that every kernel of a norm takes.

    Args:
        x: what is normed, along its last axis.
        residual: added to it before, or None.
        total: where their sum goes; None without a residual.
        weight: ``[D]`` or None.
        bias: ``[D]`` or None.
        out: where the norm goes.
        eps: added to the mean square.
    """
    rows = rows_of(x)
    others = rows if residual is None else rows_of(residual)
    arguments = {
        "x_ptr": rows,
        "residual_ptr": others,
        "weight_ptr": rows if weight is None else weight,
        "bias_ptr": rows if bias is None else bias,
        "out_ptr": out,
        "sum_ptr": rows if total is None else total,
        "row_stride": rows.stride(0),
        "residual_stride": others.stride(0),
        "eps": eps,
    }
    constants = {
        "WIDTH": rows.shape[1],
        "WEIGHTED": weight is not None,
        "BIASED": bias is not None,
        "ADDED": residual is not None,
    }
    return arguments, constants


def _norm(
    x: torch.Tensor,
    weight: torch.Tensor | None,
    bias: torch.Tensor | None,
    eps: float,
    *,
    residual: torch.Tensor | None = None,
    total: torch.Tensor | None = None,
    centered: bool = False,
    offset: float = 0.0,
) -> torch.Tensor:
    out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    arguments, constants = prepared(x, residual, total, weight, bias, out, eps)
    constants |= {"CENTERED": centered, "OFFSET": offset}
    count, width = arguments["x_ptr"].shape
    facts, padded = current_facts(), next_power_of_two(width)
    streamed = x.element_size() * (2 if residual is None else 4)
    plain = residual is None and not centered
    sizes = {
        "streamed": streamed,
        "local": _LIVE_BYTES if plain else _LIVE_BYTES_OF_MORE,
        "fixed": 4 * padded * ((weight is not None) + (bias is not None)),
    }
    if tile_bytes(padded, **sizes) > facts.ub_bytes * _SHARE:
        block = block_of(facts, streamed=streamed, local=_LIVE_BYTES_OF_MORE, maximum=padded)
        arguments["programs"] = count
        launch(_wide_norm_kernel, count, arguments, constants | {"BLOCK": block})
        return out
    tile = tile_rows(facts, padded, maximum=next_power_of_two(count), share=_SHARE, **sizes)
    programs = -(-count // tile)
    arguments |= {"rows": count, "programs": programs}
    launch(_norm_kernel, programs, arguments, constants | {"BLOCK": padded, "ROWS": tile})
    return out
