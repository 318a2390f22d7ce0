"""The gates in Triton: tiles of tokens with all heads, or of one head's channels."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from ascend_ops_core.devices import current_facts
from ascend_ops_core.kernels import as_int64, sigmoid_divisor
from ascend_ops_core.launch import launch
from ascend_ops_core.tiling import next_power_of_two, tile_rows

# Bytes alive per element besides what is loaded and stored, all in float32.
_LIVE_BYTES = 20
# Those of decays by channel, whose intermediate results follow each other in place.
_CHANNEL_BYTES = 9
_CHANNEL_SHARE = 0.9


@triton.jit
def _softplus(x):
    """``log(1 + exp(x))``, and ``x`` above 20, where the exponential may overflow."""
    return tl.where(x > 20.0, x, tl.log(1.0 + tl.exp(x)))


@triton.jit
def _gdn_kernel(
    a_ptr,
    b_ptr,
    rate_ptr,
    bias_ptr,
    decay_ptr,
    beta_ptr,
    tokens,
    a_stride,
    b_stride,
    programs,
    HEADS: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    columns = tl.arange(0, BLOCK)
    inside = columns < HEADS
    rate = tl.exp(tl.load(rate_ptr + columns, mask=inside, other=0.0).to(tl.float32)) * -1.0
    bias = tl.load(bias_ptr + columns, mask=inside, other=0.0).to(tl.float32)
    r = tl.arange(0, ROWS)
    for unit in range(tl.program_id(0), programs, tl.num_programs(0)):
        first = as_int64(unit) * ROWS
        mask = (r < tokens - first)[:, None] & inside[None, :]
        here = first * HEADS + r[:, None] * HEADS + columns[None, :]
        # What lies beyond is computed with whatever is there, and not stored.
        a = a_ptr + first * a_stride + r[:, None] * a_stride + columns[None, :]
        x = tl.load(a, mask=mask).to(tl.float32) + bias[None, :]
        tl.store(decay_ptr + here, _softplus(x) * rate[None, :], mask=mask)
        b = b_ptr + first * b_stride + r[:, None] * b_stride + columns[None, :]
        y = 1.0 / sigmoid_divisor(tl.load(b, mask=mask).to(tl.float32))
        tl.store(beta_ptr + here, y.to(beta_ptr.dtype.element_ty), mask=mask)


@triton.jit
def _sigmoid_kernel(
    x_ptr,
    out_ptr,
    rows,
    row_stride,
    programs,
    WIDTH: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    columns = tl.arange(0, BLOCK)
    r = tl.arange(0, ROWS)
    for unit in range(tl.program_id(0), programs, tl.num_programs(0)):
        first = as_int64(unit) * ROWS
        mask = (r < rows - first)[:, None] & (columns < WIDTH)[None, :]
        tile = x_ptr + first * row_stride + r[:, None] * row_stride + columns[None, :]
        x = tl.load(tile, mask=mask).to(tl.float32)
        here = first * WIDTH + r[:, None] * WIDTH + columns[None, :]
        tl.store(out_ptr + here, 1.0 / sigmoid_divisor(x), mask=mask)


@triton.jit
def _kda_kernel(
    f_ptr,
    rate_ptr,
    bias_ptr,
    decay_ptr,
    tokens,
    f_stride,
    f_head_stride,
    bound,
    tiles,
    programs,
    HEADS: tl.constexpr,
    WIDTH: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
    BOUNDED: tl.constexpr,
):
    columns = tl.arange(0, BLOCK)
    inside = columns < WIDTH
    r = tl.arange(0, ROWS)
    for unit in range(tl.program_id(0), programs, tl.num_programs(0)):
        head = unit // tiles
        first = as_int64(unit - head * tiles) * ROWS
        rate = tl.load(rate_ptr + head)
        bias = tl.load(bias_ptr + head * WIDTH + columns, mask=inside, other=0.0).to(tl.float32)
        real = r < tokens - first
        mask = real[:, None] & inside[None, :]
        f = f_ptr + first * f_stride + head * f_head_stride
        f = f + r[:, None] * f_stride + columns[None, :]
        x = tl.load(f, mask=mask).to(tl.float32) + bias[None, :]
        decay = bound / sigmoid_divisor(x * rate) if BOUNDED else _softplus(x) * (rate * -1.0)
        to = decay_ptr + first * (HEADS * WIDTH) + head * WIDTH
        tl.store(to + r[:, None] * (HEADS * WIDTH) + columns[None, :], decay, mask=mask)


def gdn_gates(
    a: torch.Tensor,
    b: torch.Tensor,
    a_log: torch.Tensor,
    dt_bias: torch.Tensor,
    beta_dtype: torch.dtype,
) -> tuple[torch.Tensor, torch.Tensor]:
    """See :func:`ascend_attention.ops.linear_gates.gdn_gates`."""
    tokens, heads = a.shape
    decay = torch.empty(a.shape, dtype=torch.float32, device=a.device)
    beta = torch.empty(b.shape, dtype=beta_dtype, device=b.device)
    a, b = _rows(a), _rows(b)
    padded = next_power_of_two(heads)
    taken = tile_rows(
        current_facts(),
        padded,
        streamed=a.element_size() + b.element_size() + beta.element_size() + 4,
        local=_LIVE_BYTES,
        maximum=next_power_of_two(tokens),
    )
    programs = -(-tokens // taken)
    arguments = {
        "a_ptr": a,
        "b_ptr": b,
        "rate_ptr": a_log.contiguous(),
        "bias_ptr": dt_bias.contiguous(),
        "decay_ptr": decay,
        "beta_ptr": beta,
        "tokens": tokens,
        "a_stride": a.stride(0),
        "b_stride": b.stride(0),
        "programs": programs,
    }
    launch(_gdn_kernel, programs, arguments, {"HEADS": heads, "ROWS": taken, "BLOCK": padded})
    return decay, beta


def kda_gates(
    f: torch.Tensor,
    b: torch.Tensor,
    a_log: torch.Tensor,
    dt_bias: torch.Tensor,
    lower_bound: float | None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """See :func:`ascend_attention.ops.linear_gates.kda_gates`."""
    tokens, heads, width = f.shape
    decay = torch.empty(f.shape, dtype=torch.float32, device=f.device)
    f = _rows(f)
    padded = next_power_of_two(width)
    taken = tile_rows(
        current_facts(),
        padded,
        streamed=f.element_size() + 4,
        local=_CHANNEL_BYTES,
        maximum=next_power_of_two(tokens),
        share=_CHANNEL_SHARE,
    )
    tiles = -(-tokens // taken)
    arguments = {
        "f_ptr": f,
        # A few values, whose exponential in the kernel would be an operation for each tile.
        "rate_ptr": a_log.float().exp(),
        "bias_ptr": dt_bias.contiguous(),
        "decay_ptr": decay,
        "tokens": tokens,
        "f_stride": f.stride(0),
        "f_head_stride": f.stride(1),
        "bound": 0.0 if lower_bound is None else lower_bound,
        "tiles": tiles,
        "programs": tiles * heads,
    }
    constants = {
        "HEADS": heads,
        "WIDTH": width,
        "ROWS": taken,
        "BLOCK": padded,
        "BOUNDED": lower_bound is not None,
    }
    launch(_kda_kernel, tiles * heads, arguments, constants)
    return decay, _sigmoid(b)


def _sigmoid(x: torch.Tensor) -> torch.Tensor:
    """``[R, N]`` float32."""
    rows, width = x.shape
    out = torch.empty(x.shape, dtype=torch.float32, device=x.device)
    x = _rows(x)
    padded = next_power_of_two(width)
    taken = tile_rows(
        current_facts(),
        padded,
        streamed=x.element_size() + 4,
        local=_LIVE_BYTES,
        maximum=next_power_of_two(rows),
    )
    programs = -(-rows // taken)
    arguments = {
        "x_ptr": x,
        "out_ptr": out,
        "rows": rows,
        "row_stride": x.stride(0),
        "programs": programs,
    }
    constants = {"WIDTH": width, "ROWS": taken, "BLOCK": padded}
    launch(_sigmoid_kernel, programs, arguments, constants)
    return out


def _rows(x: torch.Tensor) -> torch.Tensor:
    return x if x.stride(-1) == 1 or x.shape[-1] == 1 else x.contiguous()
