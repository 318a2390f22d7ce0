"""Lightning attention by chunks.

They go three ways: what the tokens of each chunk add to the state, for all chunks at once; the
states at their beginnings, from one chunk of a request to the next; the results of all chunks. A
chunk's products within and its reading of the state are one kernel, so results are written once.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from ascend_ops_core.devices import current_facts
from ascend_ops_core.kernels import as_int64
from ascend_ops_core.launch import launch
from ascend_ops_core.tiling import block_of, next_power_of_two

from ascend_attention.ops.causal_conv.kernels import owner_of_chunk

_CHUNK = 64
_LEAST = 16  # rows and columns of a product
# Values of a state that one program carries from chunk to chunk: enough for a transfer's speed.
_MOST_CARRIED = 8192


@triton.jit
def _chunk(start_ptr, unit, requests, tokens, CHUNK: tl.constexpr):
    """Request, first token and tokens of a chunk; request ``requests`` is padding."""
    r = owner_of_chunk(start_ptr, unit, requests, CHUNK)
    begin = tl.load(start_ptr + r).to(tl.int32)
    real = r < requests
    end = tl.load(start_ptr + tl.where(real, r + 1, r)).to(tl.int32)
    end = tl.where(real, end, tokens)
    first = begin + (unit - begin // CHUNK - r) * CHUNK
    count = end - first
    count = tl.where(count > CHUNK, CHUNK, count)
    return r, first, tl.where(count > 0, count, 0)


@triton.jit
def _tile(pointer, stride, rows, left, WIDTH: tl.constexpr, BLOCK: tl.constexpr):
    columns = tl.arange(0, BLOCK)
    mask = (rows < left)[:, None] & (columns < WIDTH)[None, :]
    return tl.load(pointer + rows[:, None] * stride + columns[None, :], mask=mask, other=0.0)


@triton.jit
def _added_kernel(
    key_ptr,
    value_ptr,
    slopes_ptr,
    start_ptr,
    added_ptr,
    tokens,
    requests,
    key_stride,
    key_head_stride,
    value_stride,
    value_head_stride,
    programs,
    HEADS: tl.constexpr,
    WIDTH: tl.constexpr,
    INNER: tl.constexpr,
    CHUNK: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    """What the tokens of a chunk add to the state, seen from the chunk's end."""
    i = tl.arange(0, CHUNK)
    d, e = tl.arange(0, ROWS), tl.arange(0, COLUMNS)
    for part in range(tl.program_id(0), programs, tl.num_programs(0)):
        unit = part // HEADS
        head = part - unit * HEADS
        at = tl.full((), 0, tl.int32) + unit
        r, first, count = _chunk(start_ptr, at, requests, tokens, CHUNK)
        if (r < requests) & (count > 0):
            slope = tl.load(slopes_ptr + head)
            key = key_ptr + as_int64(first) * key_stride + head * key_head_stride
            value = value_ptr + as_int64(first) * value_stride + head * value_head_stride
            k = _tile(key, key_stride, i, count, WIDTH, ROWS).to(tl.float32)
            v = _tile(value, value_stride, i, count, INNER, COLUMNS).to(tl.float32)
            # Beyond the chunk there are zeros, whatever their weight is.
            rest = tl.where(i < count, count - 1 - i, 0).to(tl.float32)
            k = k * tl.exp(rest * slope * -1.0)[:, None]
            total = tl.dot(tl.trans(k), v, input_precision="ieee")
            to = added_ptr + as_int64(part) * (WIDTH * INNER)
            mask = (d < WIDTH)[:, None] & (e < INNER)[None, :]
            tl.store(to + d[:, None] * INNER + e[None, :], total, mask=mask)


@triton.jit
def _states_kernel(
    added_ptr,
    slopes_ptr,
    start_ptr,
    states_ptr,
    slots_ptr,
    has_ptr,
    state_stride,
    parts,
    programs,
    HEADS: tl.constexpr,
    SIZE: tl.constexpr,
    CHUNK: tl.constexpr,
    BLOCK: tl.constexpr,
    STATEFUL: tl.constexpr,
    GIVEN: tl.constexpr,
):
    """Replaces what every chunk adds by the state at its beginning, and keeps the last state."""
    lanes = tl.arange(0, BLOCK)
    for unit in range(tl.program_id(0), programs, tl.num_programs(0)):
        pair = unit // parts
        here = (unit - pair * parts) * BLOCK
        r = pair // HEADS
        head = pair - r * HEADS
        begin = tl.load(start_ptr + r).to(tl.int32)
        count = tl.load(start_ptr + r + 1).to(tl.int32) - begin
        slope = tl.load(slopes_ptr + head)
        inside = lanes < SIZE - here
        slot = tl.full((), 1, tl.int32)
        state = tl.zeros((BLOCK,), tl.float32)
        at = added_ptr
        if STATEFUL:
            slot = tl.load(slots_ptr + r).to(tl.int32)
            at = states_ptr + as_int64(slot) * state_stride + head * SIZE + here
            held = slot > 0
            if GIVEN:
                held = held & (tl.load(has_ptr + r) > 0)
            room = tl.where(held, SIZE - here, 0)
            state = tl.load(at + lanes, mask=lanes < room, other=0.0).to(tl.float32)
        if (slot > 0) & (count > 0):
            chunks = (count + CHUNK - 1) // CHUNK
            first = begin // CHUNK + r
            for c in range(0, chunks):
                place = added_ptr + (as_int64(first + c) * HEADS + head) * SIZE + here
                added = tl.load(place + lanes, mask=inside, other=0.0)
                tl.store(place + lanes, state, mask=inside)
                left = count - c * CHUNK
                left = tl.where(left > CHUNK, CHUNK, left).to(tl.float32)
                state = state * tl.exp(left * slope * -1.0) + added
            if STATEFUL:
                tl.store(at + lanes, state.to(states_ptr.dtype.element_ty), mask=inside)


@triton.jit
def _output_kernel(
    query_ptr,
    key_ptr,
    value_ptr,
    slopes_ptr,
    start_ptr,
    slots_ptr,
    before_ptr,
    out_ptr,
    tokens,
    requests,
    query_stride,
    query_head_stride,
    key_stride,
    key_head_stride,
    value_stride,
    value_head_stride,
    programs,
    HEADS: tl.constexpr,
    WIDTH: tl.constexpr,
    INNER: tl.constexpr,
    CHUNK: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    STATEFUL: tl.constexpr,
):
    i = tl.arange(0, CHUNK)
    d, e = tl.arange(0, ROWS), tl.arange(0, COLUMNS)
    lag = (i[:, None] - i[None, :]).to(tl.float32)
    for part in range(tl.program_id(0), programs, tl.num_programs(0)):
        unit = part // HEADS
        head = part - unit * HEADS
        at = tl.full((), 0, tl.int32) + unit
        r, first, count = _chunk(start_ptr, at, requests, tokens, CHUNK)
        slot = tl.where(r < requests, 1, 0)
        if STATEFUL:
            slot = tl.load(slots_ptr + tl.where(r < requests, r, 0)).to(tl.int32) * slot
        out = out_ptr + (as_int64(first) * HEADS + head) * INNER
        out = out + i[:, None] * (HEADS * INNER) + e[None, :]
        mask = (i < count)[:, None] & (e < INNER)[None, :]
        if slot > 0:
            if count > 0:
                slope = tl.load(slopes_ptr + head)
                query = query_ptr + as_int64(first) * query_stride + head * query_head_stride
                key = key_ptr + as_int64(first) * key_stride + head * key_head_stride
                value = value_ptr + as_int64(first) * value_stride + head * value_head_stride
                q = _tile(query, query_stride, i, count, WIDTH, ROWS)
                k = _tile(key, key_stride, i, count, WIDTH, ROWS)
                products = tl.dot(q, tl.trans(k), input_precision="ieee")
                weight = tl.where(lag >= 0.0, tl.exp(lag * slope * -1.0), 0.0)
                products = (products * weight).to(value_ptr.dtype.element_ty)
                v = _tile(value, value_stride, i, count, INNER, COLUMNS)
                total = tl.dot(products, v, input_precision="ieee")
                before = before_ptr + as_int64(part) * (WIDTH * INNER)
                state_mask = (d < WIDTH)[:, None] & (e < INNER)[None, :]
                state = tl.load(
                    before + d[:, None] * INNER + e[None, :], mask=state_mask, other=0.0
                )
                decay = tl.exp((i + 1).to(tl.float32) * slope * -1.0)
                read = tl.dot(q.to(tl.float32), state, input_precision="ieee")
                total += read * decay[:, None]
                tl.store(out, total.to(out_ptr.dtype.element_ty), mask=mask)
        else:
            nothing = tl.zeros((CHUNK, COLUMNS), out_ptr.dtype.element_ty)
            tl.store(out, nothing, mask=mask)


def lightning_attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    slopes: torch.Tensor,
    query_start: torch.Tensor,
    states: torch.Tensor | None,
    slots: torch.Tensor | None,
    has_state: torch.Tensor | None,
) -> torch.Tensor:
    """See :func:`ascend_attention.ops.lightning_attention.lightning_attention`."""
    tokens, heads, width = query.shape
    inner, requests = value.shape[2], query_start.shape[0] - 1
    out = torch.empty(value.shape, dtype=value.dtype, device=value.device)
    if not tokens:
        return out
    units = tokens // _CHUNK + requests
    carried = torch.empty((units + 1, heads, width, inner), dtype=torch.float32, device=out.device)
    start, slots = query_start.contiguous(), None if slots is None else slots.contiguous()
    shape: dict[str, Any] = {
        "HEADS": heads,
        "WIDTH": width,
        "INNER": inner,
        "CHUNK": _CHUNK,
        "ROWS": max(next_power_of_two(width), _LEAST),
        "COLUMNS": max(next_power_of_two(inner), _LEAST),
    }
    pairs = {
        "key_ptr": key,
        "value_ptr": value,
        "slopes_ptr": slopes,
        "start_ptr": start,
        "tokens": tokens,
        "requests": requests,
        "key_stride": key.stride(0),
        "key_head_stride": key.stride(1),
        "value_stride": value.stride(0),
        "value_head_stride": value.stride(1),
    }
    programs = units * heads
    arguments = pairs | {"added_ptr": carried, "programs": programs}
    launch(_added_kernel, programs, arguments, shape, cube=True)
    _carry(carried, slopes, start, states, slots, has_state, heads, width * inner)
    programs = (units + 1) * heads
    arguments = pairs | {
        "query_ptr": query,
        "slots_ptr": slots,
        "before_ptr": carried,
        "out_ptr": out,
        "query_stride": query.stride(0),
        "query_head_stride": query.stride(1),
        "programs": programs,
    }
    stateful = {"STATEFUL": states is not None}
    launch(_output_kernel, programs, arguments, shape | stateful, cube=True)
    return out


def _carry(
    carried: torch.Tensor,
    slopes: torch.Tensor,
    start: torch.Tensor,
    states: torch.Tensor | None,
    slots: torch.Tensor | None,
    has_state: torch.Tensor | None,
    heads: int,
    size: int,
) -> None:
    block = block_of(
        current_facts(),
        streamed=8,
        local=12,
        maximum=min(_MOST_CARRIED, next_power_of_two(size)),
    )
    parts = -(-size // block)
    programs = (start.shape[0] - 1) * heads * parts
    arguments = {
        "added_ptr": carried,
        "slopes_ptr": slopes,
        "start_ptr": start,
        "states_ptr": states,
        "slots_ptr": slots,
        "has_ptr": None if has_state is None else has_state.contiguous().view(torch.uint8),
        "state_stride": 0 if states is None else states.stride(0),
        "parts": parts,
        "programs": programs,
    }
    constants = {
        "HEADS": heads,
        "SIZE": size,
        "CHUNK": _CHUNK,
        "BLOCK": block,
        "STATEFUL": states is not None,
        "GIVEN": has_state is not None,
    }
    launch(_states_kernel, programs, arguments, constants)
