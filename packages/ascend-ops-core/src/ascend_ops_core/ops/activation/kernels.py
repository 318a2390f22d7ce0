"""The activations in Triton."""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl

from ascend_ops_core.devices import current_facts
from ascend_ops_core.kernels import as_int64, sigmoid_divisor
from ascend_ops_core.launch import launch
from ascend_ops_core.tiling import block_of, even_block, next_power_of_two, tile_rows

# float32 values alive per result: gate, up, the exponential and the product.
_LIVE_BYTES = 16
# The same of SiTU: both branches of a bound stand beside gate and up.
_SITU_LIVE_BYTES = 28
# What taking alternating channels apart costs on top, at the width of the input.
_SPLIT_BYTES = 16


@triton.jit
def limited_gate_up(gate, up, limit, LIMITED: tl.constexpr):
    """The gate limited from above and ``up`` on both sides; NaN stays NaN."""
    if LIMITED:
        gate = tl.where(gate > limit, limit, gate)
        up = tl.where(up > limit, limit, up)
        up = tl.where(up < -limit, -limit, up)
    return gate, up


@triton.jit
def _gated_kernel(
    x_ptr,
    out_ptr,
    rows,
    row_stride,
    alpha,
    limit,
    bias,
    programs,
    WIDTH: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
    LIMITED: tl.constexpr,
    STEP: tl.constexpr,
    OAI: tl.constexpr,
    INTERLEAVED: tl.constexpr,
):
    column_blocks: tl.constexpr = (WIDTH + BLOCK - 1) // BLOCK
    for unit in range(tl.program_id(0), programs, tl.num_programs(0)):
        first = as_int64(unit // column_blocks) * ROWS
        start = (unit % column_blocks) * BLOCK
        r = tl.arange(0, ROWS)
        columns = start + tl.arange(0, BLOCK)
        mask = (r < rows - first)[:, None] & (columns < WIDTH)[None, :]
        row = x_ptr + first * row_stride + r[:, None] * row_stride
        if INTERLEAVED:
            both = 2 * start + tl.arange(0, 2 * BLOCK)
            both_mask = (r < rows - first)[:, None] & (both < 2 * WIDTH)[None, :]
            pairs = tl.load(row + both[None, :], mask=both_mask, other=0.0)
            gate, up = tl.split(tl.reshape(pairs, (ROWS, BLOCK, 2)))
        else:
            gate = tl.load(row + columns[None, :], mask=mask, other=0.0)
            up = tl.load(row + (columns + WIDTH)[None, :], mask=mask, other=0.0)
        gate = gate.to(tl.float32)
        up = up.to(tl.float32)
        if STEP:
            gate = gate / sigmoid_divisor(gate)
            gate, up = limited_gate_up(gate, up, limit, True)
            y = gate * up
        else:
            gate, up = limited_gate_up(gate, up, limit, LIMITED)
            if OAI:
                y = gate / sigmoid_divisor(alpha * gate) * (up + bias)
            else:
                y = gate / sigmoid_divisor(gate) * up
        out = out_ptr + first * WIDTH + r[:, None] * WIDTH + columns[None, :]
        tl.store(out, y.to(out_ptr.dtype.element_ty), mask=mask)


@triton.jit
def _quick_gelu_kernel(x_ptr, out_ptr, elements, programs, BLOCK: tl.constexpr):
    for unit in range(tl.program_id(0), programs, tl.num_programs(0)):
        first = as_int64(unit) * BLOCK
        offsets = tl.arange(0, BLOCK)
        mask = offsets < elements - first
        x = tl.load(x_ptr + first + offsets, mask=mask, other=0.0).to(tl.float32)
        y = x / (1.0 + tl.exp(-1.702 * x))
        tl.store(out_ptr + first + offsets, y.to(out_ptr.dtype.element_ty), mask=mask)


@triton.jit
def _bounded(x, bound):
    """``bound * tanh(x / bound)``; an exponential that overflows is the bound itself.

    Near 0 the difference would lose its digits, and the series has them.
    """
    t = x * (1.0 / bound)
    t2 = t * t
    near = x * (1.0 + t2 * (-1 / 3 + t2 * (2 / 15 + t2 * (-17 / 315))))
    far = bound - 2.0 * bound / (1.0 + tl.exp(2.0 * t))
    return tl.where(t2 < 0.04, near, far)


@triton.jit
def _situ_kernel(
    x_ptr,
    out_ptr,
    rows,
    row_stride,
    beta,
    linear_beta,
    programs,
    WIDTH: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
    LINEAR: tl.constexpr,
):
    column_blocks: tl.constexpr = (WIDTH + BLOCK - 1) // BLOCK
    for unit in range(tl.program_id(0), programs, tl.num_programs(0)):
        first = as_int64(unit // column_blocks) * ROWS
        columns = (unit % column_blocks) * BLOCK + tl.arange(0, BLOCK)
        r = tl.arange(0, ROWS)
        mask = (r < rows - first)[:, None] & (columns < WIDTH)[None, :]
        row = x_ptr + first * row_stride + r[:, None] * row_stride
        gate = tl.load(row + columns[None, :], mask=mask, other=0.0).to(tl.float32)
        up = tl.load(row + (columns + WIDTH)[None, :], mask=mask, other=0.0).to(tl.float32)
        if LINEAR:
            up = _bounded(up, linear_beta)
        y = _bounded(gate, beta) / sigmoid_divisor(gate) * up
        out = out_ptr + first * WIDTH + r[:, None] * WIDTH + columns[None, :]
        tl.store(out, y.to(out_ptr.dtype.element_ty), mask=mask)


def silu_and_mul(gate_up: torch.Tensor) -> torch.Tensor:
    """See :func:`ascend_ops_core.ops.activation.silu_and_mul`."""
    return _gated(gate_up)


def silu_and_mul_with_clamp(gate_up: torch.Tensor, limit: float | None) -> torch.Tensor:
    """See :func:`ascend_ops_core.ops.activation.silu_and_mul_with_clamp`."""
    return _gated(gate_up, limit=limit or 0.0, limited=bool(limit))


def swiglu_oai_and_mul(
    gate_up: torch.Tensor, alpha: float, limit: float, bias: float, interleaved: bool
) -> torch.Tensor:
    """See :func:`ascend_ops_core.ops.activation.swiglu_oai_and_mul`."""
    return _gated(
        gate_up,
        limit=limit,
        limited=True,
        alpha=alpha,
        bias=bias,
        oai=True,
        # One gate and one up channel are halves as well, which A5's compiler prefers.
        interleaved=interleaved and gate_up.shape[-1] > 2,
    )


def swiglustep_and_mul(gate_up: torch.Tensor, limit: float) -> torch.Tensor:
    """See :func:`ascend_ops_core.ops.activation.swiglustep_and_mul`."""
    return _gated(gate_up, limit=limit, step=True)


def situ_and_mul(gate_up: torch.Tensor, beta: float, linear_beta: float | None) -> torch.Tensor:
    """See :func:`ascend_ops_core.ops.activation.situ_and_mul`."""
    x, out = _rows(gate_up)
    arguments = {"beta": beta, "linear_beta": linear_beta or 0.0}
    constants = {"LINEAR": bool(linear_beta)}
    _launch_gated(_situ_kernel, x, out, arguments, constants, _SITU_LIVE_BYTES)
    return out


def quick_gelu(x: torch.Tensor) -> torch.Tensor:
    """See :func:`ascend_ops_core.ops.activation.quick_gelu`."""
    values = x.contiguous()
    out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    elements = values.numel()
    block = block_of(
        current_facts(),
        streamed=2 * x.element_size(),
        local=_LIVE_BYTES,
        maximum=next_power_of_two(elements),
    )
    programs = -(-elements // block)
    arguments = {"x_ptr": values, "out_ptr": out, "elements": elements, "programs": programs}
    launch(_quick_gelu_kernel, programs, arguments, {"BLOCK": block})
    return out


def _gated(
    gate_up: torch.Tensor,
    *,
    limit: float = 0.0,
    limited: bool = False,
    alpha: float = 1.0,
    bias: float = 0.0,
    step: bool = False,
    oai: bool = False,
    interleaved: bool = False,
) -> torch.Tensor:
    x, out = _rows(gate_up)
    arguments = {"alpha": alpha, "limit": limit, "bias": bias}
    constants = {"LIMITED": limited, "STEP": step, "OAI": oai, "INTERLEAVED": interleaved}
    live_bytes = _LIVE_BYTES + (_SPLIT_BYTES if interleaved else 0)
    _launch_gated(_gated_kernel, x, out, arguments, constants, live_bytes)
    return out


def _rows(gate_up: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """``[M, 2 * I]`` with neighbouring channels, and room for the result."""
    width = gate_up.shape[-1] // 2
    x = gate_up.reshape(-1, 2 * width) if width else gate_up.reshape(0, 0)
    if x.stride(-1) != 1:
        x = x.contiguous()
    shape = (*gate_up.shape[:-1], width)
    return x, torch.empty(shape, dtype=gate_up.dtype, device=gate_up.device)


def _launch_gated(
    kernel: Any,
    x: torch.Tensor,
    out: torch.Tensor,
    arguments: dict[str, Any],
    constants: dict[str, Any],
    live_bytes: int,
) -> None:
    facts, (rows, width) = current_facts(), (x.shape[0], out.shape[-1])
    sizes = {"streamed": 3 * x.element_size(), "local": live_bytes}
    block = even_block(width, block_of(facts, maximum=next_power_of_two(width), **sizes))
    tile = tile_rows(facts, block, maximum=next_power_of_two(rows), **sizes)
    programs = -(-rows // tile) * -(-width // block)
    places = {"x_ptr": x, "out_ptr": out, "rows": rows, "row_stride": x.stride(0)}
    sizes = {"WIDTH": width, "ROWS": tile, "BLOCK": block}
    launch(
        kernel,
        programs,
        places | arguments | {"programs": programs},
        sizes | constants,
    )
