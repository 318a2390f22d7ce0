"""The gated norms in Triton: one kernel for groups that fit into the buffer, one for wider ones."""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl

from ascend_ops_core.devices import current_facts
from ascend_ops_core.kernels import as_int64, sigmoid_divisor
from ascend_ops_core.launch import launch
from ascend_ops_core.ops.norm.kernels import normalized, rows_of, vector
from ascend_ops_core.tiling import block_of, next_power_of_two, tile_bytes, tile_rows

# Bytes alive per element besides what is loaded and stored: row and gate in float32, a product. The
# compile check measures that tiles which fill this share by the estimate fit.
_LIVE_BYTES = 10
_SHARE = 0.95
# One that needs several passes keeps the sums as well.
_WIDE_LIVE_BYTES = 20


@triton.jit
def _gated(x, z, SIGMOID: tl.constexpr):
    # Multiplied first, so that no tile of factors lives beside x and z.
    return (x if SIGMOID else x * z) / sigmoid_divisor(z)


@triton.jit
def _gated_norm_kernel(
    x_ptr,
    gate_ptr,
    weight_ptr,
    bias_ptr,
    out_ptr,
    rows,
    row_stride,
    gate_stride,
    eps,
    programs,
    WIDTH: tl.constexpr,
    GROUPS: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
    WEIGHTED: tl.constexpr,
    BIASED: tl.constexpr,
    GATED: tl.constexpr,
    GATE_FIRST: tl.constexpr,
    SIGMOID: tl.constexpr,
    CENTERED: tl.constexpr,
):
    columns = tl.arange(0, BLOCK)
    inside = columns < WIDTH
    if GROUPS == 1:
        weight = vector(weight_ptr, columns, inside, 1.0, WEIGHTED)
        bias = vector(bias_ptr, columns, inside, 0.0, BIASED)
    for unit in range(tl.program_id(0), programs, tl.num_programs(0)):
        first = as_int64(unit // GROUPS) * ROWS
        start = (unit % GROUPS) * WIDTH
        if GROUPS > 1:
            weight = vector(weight_ptr + start, columns, inside, 1.0, WEIGHTED)
            bias = vector(bias_ptr + start, columns, inside, 0.0, BIASED)
        r = tl.arange(0, ROWS)
        mask = (r < rows - first)[:, None] & inside[None, :]
        tile = x_ptr + first * row_stride + start + r[:, None] * row_stride + columns[None, :]
        x = tl.load(tile, mask=mask, other=0.0).to(tl.float32)
        # Gates are loaded where they are used, so that they can lie where squares lay.
        gates = gate_ptr + first * gate_stride + start
        gates = gates + r[:, None] * gate_stride + columns[None, :]
        if GATE_FIRST:
            x = _gated(x, tl.load(gates, mask=mask, other=0.0).to(tl.float32), SIGMOID)
        y = normalized(x, inside, eps, WIDTH, CENTERED)
        if WEIGHTED:
            y = y * weight[None, :]
        if BIASED:
            y = y + bias[None, :]
        if GATED and not GATE_FIRST:
            y = _gated(y, tl.load(gates, mask=mask, other=0.0).to(tl.float32), SIGMOID)
        here = first * (GROUPS * WIDTH) + start + r[:, None] * (GROUPS * WIDTH) + columns[None, :]
        tl.store(out_ptr + here, y.to(out_ptr.dtype.element_ty), mask=mask)


@triton.jit
def _input(x, gate, columns, inside, GATE_FIRST: tl.constexpr, SIGMOID: tl.constexpr):
    values = tl.load(x + columns, mask=inside, other=0.0).to(tl.float32)
    if GATE_FIRST:
        z = tl.load(gate + columns, mask=inside, other=0.0).to(tl.float32)
        values = _gated(values, z, SIGMOID)
    return values


@triton.jit
def _wide_gated_norm_kernel(
    x_ptr,
    gate_ptr,
    weight_ptr,
    bias_ptr,
    out_ptr,
    row_stride,
    gate_stride,
    eps,
    programs,
    WIDTH: tl.constexpr,
    GROUPS: tl.constexpr,
    BLOCK: tl.constexpr,
    WEIGHTED: tl.constexpr,
    BIASED: tl.constexpr,
    GATED: tl.constexpr,
    GATE_FIRST: tl.constexpr,
    SIGMOID: tl.constexpr,
    CENTERED: tl.constexpr,
):
    for unit in range(tl.program_id(0), programs, tl.num_programs(0)):
        row = as_int64(unit // GROUPS)
        start = (unit % GROUPS) * WIDTH
        x = x_ptr + row * row_stride + start
        gate = gate_ptr + row * gate_stride + start
        out = out_ptr + row * (GROUPS * WIDTH) + start
        mean = 0.0
        if CENTERED:
            totals = tl.zeros((BLOCK,), tl.float32)
            for first in range(0, WIDTH, BLOCK):
                columns = first + tl.arange(0, BLOCK)
                totals += _input(x, gate, columns, columns < WIDTH, GATE_FIRST, SIGMOID)
            mean = tl.sum(totals, axis=0) / WIDTH
        squares = tl.zeros((BLOCK,), tl.float32)
        for first in range(0, WIDTH, BLOCK):
            columns = first + tl.arange(0, BLOCK)
            inside = columns < WIDTH
            value = _input(x, gate, columns, inside, GATE_FIRST, SIGMOID)
            if CENTERED:
                value = tl.where(inside, value - mean, 0.0)
            squares += value * value
        scale = 1.0 / tl.sqrt(tl.sum(squares, axis=0) / WIDTH + eps)
        for first in range(0, WIDTH, BLOCK):
            columns = first + tl.arange(0, BLOCK)
            inside = columns < WIDTH
            y = (_input(x, gate, columns, inside, GATE_FIRST, SIGMOID) - mean) * scale
            if WEIGHTED:
                y = y * vector(weight_ptr + start, columns, inside, 1.0, True)
            if BIASED:
                y = y + vector(bias_ptr + start, columns, inside, 0.0, True)
            if GATED and not GATE_FIRST:
                z = tl.load(gate + columns, mask=inside, other=0.0).to(tl.float32)
                y = _gated(y, z, SIGMOID)
            tl.store(out + columns, y.to(out_ptr.dtype.element_ty), mask=inside)


def rms_norm_gated(
    x: torch.Tensor,
    gate: torch.Tensor | None,
    weight: torch.Tensor | None,
    bias: torch.Tensor | None,
    eps: float,
    group_size: int,
    norm_before_gate: bool,
    activation: str,
) -> torch.Tensor:
    """See :func:`ascend_ops_core.ops.gated_norm.rms_norm_gated`."""
    return _gated_norm(x, gate, weight, bias, eps, group_size, norm_before_gate, activation, False)


def layer_norm_gated(
    x: torch.Tensor,
    gate: torch.Tensor | None,
    weight: torch.Tensor | None,
    bias: torch.Tensor | None,
    eps: float,
    group_size: int,
    norm_before_gate: bool,
    activation: str,
) -> torch.Tensor:
    """See :func:`ascend_ops_core.ops.gated_norm.layer_norm_gated`."""
    return _gated_norm(x, gate, weight, bias, eps, group_size, norm_before_gate, activation, True)


def _gated_norm(
    x: torch.Tensor,
    gate: torch.Tensor | None,
    weight: torch.Tensor | None,
    bias: torch.Tensor | None,
    eps: float,
    size: int,
    norm_before_gate: bool,
    activation: str,
    centered: bool,
) -> torch.Tensor:
    rows = rows_of(x)
    gates = rows if gate is None else rows_of(gate)
    out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    count, groups = rows.shape[0], rows.shape[1] // size
    facts, padded = current_facts(), next_power_of_two(size)
    arguments: dict[str, Any] = {
        "x_ptr": rows,
        "gate_ptr": gates,
        "weight_ptr": rows if weight is None else weight,
        "bias_ptr": rows if bias is None else bias,
        "out_ptr": out,
        "row_stride": rows.stride(0),
        "gate_stride": gates.stride(0),
        "eps": eps,
    }
    constants: dict[str, Any] = {
        "WIDTH": size,
        "GROUPS": groups,
        "WEIGHTED": weight is not None,
        "BIASED": bias is not None,
        "GATED": gate is not None,
        "GATE_FIRST": gate is not None and not norm_before_gate,
        "SIGMOID": activation == "sigmoid",
        "CENTERED": centered,
    }
    streamed = 2 * x.element_size() + gates.element_size()
    vectors = (weight is not None) + (bias is not None)
    sizes = {"streamed": streamed, "local": _LIVE_BYTES, "fixed": 8 * padded * vectors}
    # The compiler for A5 ends with invalid IR at a tile of one row with masked channels.
    least = 2 if padded != size and facts.family == "A5" else 1
    if tile_bytes(least * padded, **sizes) > facts.ub_bytes * _SHARE:
        block = block_of(facts, streamed=streamed, local=_WIDE_LIVE_BYTES, maximum=padded)
        arguments["programs"] = count * groups
        launch(_wide_gated_norm_kernel, count * groups, arguments, constants | {"BLOCK": block})
        return out
    # Few rows are spread over the cores before a core takes more than one.
    share = next_power_of_two(-(-count * groups // facts.vector_cores))
    maximum = min(share, next_power_of_two(count))
    tile = tile_rows(facts, padded, minimum=least, maximum=maximum, share=_SHARE, **sizes)
    programs = -(-count // tile) * groups
    arguments |= {"rows": count, "programs": programs}
    launch(_gated_norm_kernel, programs, arguments, constants | {"BLOCK": padded, "ROWS": tile})
    return out
