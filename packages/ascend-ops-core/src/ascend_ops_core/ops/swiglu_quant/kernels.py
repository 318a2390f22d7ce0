"""SwiGLU with quantised rows in Triton."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from ascend_ops_core.devices import current_facts
from ascend_ops_core.kernels import as_int64, nearest_int8, sigmoid_divisor
from ascend_ops_core.launch import launch
from ascend_ops_core.ops.activation.kernels import limited_gate_up
from ascend_ops_core.tiling import SHARE, block_of, next_power_of_two, tile_bytes, tile_rows

# float32 values alive per result: gate, up, exponential, product, and the rounded quotient.
_LIVE_BYTES = 24
_LEAST_GROUPS = 16
# On A2 the compiler turns fewer rows of int8 around, at 32 bytes an element.
_LEAST_ROWS = 16


@triton.jit
def _rows_of_groups(groups_ptr, rows, groups, GROUPS: tl.constexpr, CUMULATIVE: tl.constexpr):
    """Rows that the groups have together, as int32; all without a list."""
    if GROUPS == 0:
        used = rows
    elif CUMULATIVE:
        used = tl.load(groups_ptr + groups - 1).to(tl.int32)
    else:
        g = tl.arange(0, GROUPS)
        used = tl.sum(tl.load(groups_ptr + g, mask=g < groups, other=0).to(tl.int32), axis=0)
    return used


@triton.jit
def _activated(gate, up, limit, LIMITED: tl.constexpr):
    gate, up = limited_gate_up(gate.to(tl.float32), up.to(tl.float32), limit, LIMITED)
    # Multiplied first, so that no third float32 tile lives beside them.
    return gate * up / sigmoid_divisor(gate)


@triton.jit
def _tile_kernel(
    x_ptr,
    groups_ptr,
    out_ptr,
    scale_ptr,
    rows,
    groups,
    row_stride,
    limit,
    programs,
    WIDTH: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
    GROUPS: tl.constexpr,
    CUMULATIVE: tl.constexpr,
    LIMITED: tl.constexpr,
):
    used = _rows_of_groups(groups_ptr, rows, groups, GROUPS, CUMULATIVE)
    columns = tl.arange(0, BLOCK)
    inside = columns < WIDTH
    r = tl.arange(0, ROWS)
    for unit in range(tl.program_id(0), programs, tl.num_programs(0)):
        first = as_int64(unit) * ROWS
        read = (r < used - first)[:, None] & inside[None, :]
        row = x_ptr + first * row_stride + r[:, None] * row_stride + columns[None, :]
        gate = tl.load(row, mask=read, other=0.0)
        up = tl.load(row + WIDTH, mask=read, other=0.0)
        y = _activated(gate, up, limit, LIMITED)
        scale = tl.max(tl.abs(y), axis=1) / 127.0
        divisor = tl.where(scale > 0, scale, 1.0)
        values = nearest_int8(y / divisor[:, None])
        written = (r < rows - first)[:, None] & inside[None, :]
        out = out_ptr + first * WIDTH + r[:, None] * WIDTH + columns[None, :]
        tl.store(out, values, mask=written)
        tl.store(scale_ptr + first + r, scale, mask=r < rows - first)


@triton.jit
def _row_kernel(
    x_ptr,
    groups_ptr,
    out_ptr,
    scale_ptr,
    rows,
    groups,
    row_stride,
    limit,
    programs,
    WIDTH: tl.constexpr,
    BLOCK: tl.constexpr,
    GROUPS: tl.constexpr,
    CUMULATIVE: tl.constexpr,
    LIMITED: tl.constexpr,
):
    used = _rows_of_groups(groups_ptr, rows, groups, GROUPS, CUMULATIVE)
    for unit in range(tl.program_id(0), programs, tl.num_programs(0)):
        row = x_ptr + as_int64(unit) * row_stride
        out = out_ptr + as_int64(unit) * WIDTH
        # Nothing of a row behind the groups is inside.
        width = tl.where(unit < used, WIDTH, 0)
        if BLOCK >= WIDTH:
            columns = tl.arange(0, BLOCK)
            gate = tl.load(row + columns, mask=columns < width, other=0.0)
            up = tl.load(row + WIDTH + columns, mask=columns < width, other=0.0)
            y = _activated(gate, up, limit, LIMITED)
            scale = tl.max(tl.abs(y), axis=0) / 127.0
            values = nearest_int8(y / tl.where(scale > 0, scale, 1.0))
            tl.store(out + columns, values, mask=columns < WIDTH)
        else:
            largest = tl.zeros((BLOCK,), tl.float32)
            for start in range(0, WIDTH, BLOCK):
                columns = start + tl.arange(0, BLOCK)
                gate = tl.load(row + columns, mask=columns < width, other=0.0)
                up = tl.load(row + WIDTH + columns, mask=columns < width, other=0.0)
                y = tl.abs(_activated(gate, up, limit, LIMITED))
                largest = tl.where(y > largest, y, largest)
            scale = tl.max(largest, axis=0) / 127.0
            divisor = tl.where(scale > 0, scale, 1.0)
            for start in range(0, WIDTH, BLOCK):
                columns = start + tl.arange(0, BLOCK)
                gate = tl.load(row + columns, mask=columns < width, other=0.0)
                up = tl.load(row + WIDTH + columns, mask=columns < width, other=0.0)
                values = nearest_int8(_activated(gate, up, limit, LIMITED) / divisor)
                tl.store(out + columns, values, mask=columns < WIDTH)
        tl.store(scale_ptr + unit, scale)


@triton.jit
def _dequantised(row, weights, columns, width, factor, WIDTH: tl.constexpr):
    """Gate and up of a row as float32; zeros from ``width`` on."""
    inside = columns < width
    gate = tl.load(row + columns, mask=inside, other=0).to(tl.float32)
    up = tl.load(row + WIDTH + columns, mask=inside, other=0).to(tl.float32)
    of_gate = tl.load(weights + columns, mask=inside, other=0.0)
    of_up = tl.load(weights + WIDTH + columns, mask=inside, other=0.0)
    return gate * of_gate * factor, up * of_up * factor


@triton.jit
def _dequant_kernel(
    x_ptr,
    weight_scale_ptr,
    activation_scale_ptr,
    ends_ptr,
    out_ptr,
    scale_ptr,
    groups,
    row_stride,
    limit,
    programs,
    WIDTH: tl.constexpr,
    BLOCK: tl.constexpr,
    GROUPS: tl.constexpr,
    LIMITED: tl.constexpr,
):
    g = tl.arange(0, GROUPS)
    ends = tl.load(ends_ptr + g, mask=g < groups, other=0x7FFFFFFF).to(tl.int32)
    for unit in range(tl.program_id(0), programs, tl.num_programs(0)):
        row = x_ptr + as_int64(unit) * row_stride
        out = out_ptr + as_int64(unit) * WIDTH
        group = tl.sum(tl.where(ends <= unit, 1, 0), axis=0)
        # Nothing of a row behind the groups is inside, whatever its scale.
        width = tl.where(group < groups, WIDTH, 0)
        factor = tl.where(group < groups, tl.load(activation_scale_ptr + unit), 0.0)
        weights = weight_scale_ptr + as_int64(group) * (2 * WIDTH)
        if BLOCK >= WIDTH:
            columns = tl.arange(0, BLOCK)
            gate, up = _dequantised(row, weights, columns, width, factor, WIDTH)
            y = _activated(gate, up, limit, LIMITED)
            scale = tl.max(tl.abs(y), axis=0) / 127.0
            values = nearest_int8(y / tl.where(scale > 0, scale, 1.0))
            tl.store(out + columns, values, mask=columns < WIDTH)
        else:
            largest = tl.zeros((BLOCK,), tl.float32)
            for start in range(0, WIDTH, BLOCK):
                columns = start + tl.arange(0, BLOCK)
                gate, up = _dequantised(row, weights, columns, width, factor, WIDTH)
                y = tl.abs(_activated(gate, up, limit, LIMITED))
                largest = tl.where(y > largest, y, largest)
            scale = tl.max(largest, axis=0) / 127.0
            divisor = tl.where(scale > 0, scale, 1.0)
            for start in range(0, WIDTH, BLOCK):
                columns = start + tl.arange(0, BLOCK)
                gate, up = _dequantised(row, weights, columns, width, factor, WIDTH)
                values = nearest_int8(_activated(gate, up, limit, LIMITED) / divisor)
                tl.store(out + columns, values, mask=columns < WIDTH)
        tl.store(scale_ptr + unit, scale)


def dequant_swiglu_quant(
    gate_up: torch.Tensor,
    weight_scale: torch.Tensor,
    activation_scale: torch.Tensor,
    groups: torch.Tensor | None,
    cumulative: bool,
    limit: float | None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """See :func:`ascend_ops_core.ops.swiglu_quant.dequant_swiglu_quant`."""
    x = gate_up if gate_up.stride(-1) == 1 else gate_up.contiguous()
    rows, width = x.shape[0], x.shape[1] // 2
    values = torch.empty((rows, width), dtype=torch.int8, device=x.device)
    scales = torch.empty(rows, dtype=torch.float32, device=x.device)
    if groups is None:
        ends = torch.full((1,), rows, dtype=torch.int64, device=x.device)
    else:
        ends = groups.contiguous() if cumulative else groups.cumsum(0)
    arguments = {
        "x_ptr": x,
        "weight_scale_ptr": weight_scale.contiguous(),
        "activation_scale_ptr": activation_scale.contiguous(),
        "ends_ptr": ends,
        "out_ptr": values,
        "scale_ptr": scales,
        "groups": ends.shape[0],
        "row_stride": x.stride(0),
        "limit": limit or 0.0,
        "programs": rows,
    }
    # Two integers, their two scales, and the result; two passes have buffers of their own.
    facts, sizes = current_facts(), {"local": _LIVE_BYTES, "maximum": next_power_of_two(width)}
    block = block_of(facts, streamed=17, **sizes)
    if block < width:
        block = block_of(facts, streamed=33, **sizes)
    constants = {
        "WIDTH": width,
        "BLOCK": block,
        "GROUPS": max(next_power_of_two(ends.shape[0]), _LEAST_GROUPS),
        "LIMITED": bool(limit),
    }
    launch(_dequant_kernel, rows, arguments, constants)
    return values, scales


def swiglu_quant(
    gate_up: torch.Tensor, groups: torch.Tensor | None, cumulative: bool, limit: float | None
) -> tuple[torch.Tensor, torch.Tensor]:
    """See :func:`ascend_ops_core.ops.swiglu_quant.swiglu_quant`."""
    x = gate_up if gate_up.stride(-1) == 1 else gate_up.contiguous()
    rows, width = x.shape[0], x.shape[1] // 2
    values = torch.empty((rows, width), dtype=torch.int8, device=x.device)
    scales = torch.empty(rows, dtype=torch.float32, device=x.device)
    facts, padded = current_facts(), next_power_of_two(width)
    count = 0 if groups is None else groups.shape[0]
    arguments = {
        "x_ptr": x,
        "groups_ptr": scales if groups is None else groups,
        "out_ptr": values,
        "scale_ptr": scales,
        "rows": rows,
        "groups": count,
        "row_stride": x.stride(0),
        "limit": limit or 0.0,
    }
    constants = {
        "WIDTH": width,
        "GROUPS": max(next_power_of_two(count), _LEAST_GROUPS) if count else 0,
        "CUMULATIVE": cumulative,
        "LIMITED": bool(limit),
    }
    sizes = {"streamed": 2 * x.element_size() + 1, "local": _LIVE_BYTES}
    if tile_bytes(_LEAST_ROWS * padded, **sizes) > facts.ub_bytes * SHARE:
        block = block_of(facts, maximum=padded, **sizes)
        arguments["programs"] = rows
        launch(_row_kernel, rows, arguments, constants | {"BLOCK": block})
        return values, scales
    tile = tile_rows(facts, padded, per_row=16, minimum=_LEAST_ROWS, **sizes)
    arguments["programs"] = programs = -(-rows // tile)
    launch(_tile_kernel, programs, arguments, constants | {"ROWS": tile, "BLOCK": padded})
    return values, scales
