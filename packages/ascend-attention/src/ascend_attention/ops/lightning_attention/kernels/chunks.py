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

from ascend_attention.ops.lightning_attention.kernels.plan import (
    CHUNK,
    chunk_at,
    chunk_table,
    decays_of,
)

_LEAST = 16  # rows and columns of a product
# Values of a state that one program carries from chunk to chunk: enough for a transfer's speed.
_MOST_CARRIED = 8192


@triton.jit
def _tile(pointer, stride, rows, left, WIDTH: tl.constexpr, BLOCK: tl.constexpr):
    columns = tl.arange(0, BLOCK)
    mask = (rows < left)[:, None] & (columns < WIDTH)[None, :]
    return tl.load(pointer + rows[:, None] * stride + columns[None, :], mask=mask, other=0.0)


@triton.jit
def _added_kernel(
    key_ptr,
    value_ptr,
    table_ptr,
    decays_ptr,
    added_ptr,
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
        first, count = chunk_at(table_ptr, unit, CHUNK)
        if count > 0:
            key = key_ptr + first * key_stride + head * key_head_stride
            value = value_ptr + first * value_stride + head * value_head_stride
            k = _tile(key, key_stride, i, count, WIDTH, ROWS).to(tl.float32)
            v = _tile(value, value_stride, i, count, INNER, COLUMNS).to(tl.float32)
            # Falls to one at the last token; beyond the chunk there are zeros, whatever it is.
            rest = tl.load(decays_ptr + head * (2 * CHUNK) + CHUNK - count + i)
            total = tl.dot(tl.trans(k * rest[:, None]), v, input_precision="ieee")
            to = added_ptr + as_int64(part) * (WIDTH * INNER)
            mask = (d < WIDTH)[:, None] & (e < INNER)[None, :]
            tl.store(to + d[:, None] * INNER + e[None, :], total, mask=mask)


@triton.jit
def _states_kernel(
    added_ptr,
    before_ptr,
    decays_ptr,
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
    TOGETHER: tl.constexpr,
    STATEFUL: tl.constexpr,
    GIVEN: tl.constexpr,
):
    """From what every chunk adds, the state at its beginning; keeps the last state.

    ``before`` may be ``added``, which is read first.
    """
    lanes = tl.arange(0, BLOCK)
    for unit in range(tl.program_id(0), programs, tl.num_programs(0)):
        pair = unit // parts
        top = (unit - pair * parts) * (TOGETHER * BLOCK)
        r = pair // HEADS
        head = pair - r * HEADS
        begin = tl.load(start_ptr + r).to(tl.int32)
        count = tl.load(start_ptr + r + 1).to(tl.int32) - begin
        slot = tl.full((), 1, tl.int32)
        held = slot > 1
        if STATEFUL:
            slot = tl.load(slots_ptr + r).to(tl.int32)
            held = slot > 0
            if GIVEN:
                held = held & (tl.load(has_ptr + r) > 0)
        if (slot > 0) & (count > 0):
            chunks = (count + CHUNK - 1) // CHUNK
            first = begin // CHUNK + r
            decays = decays_ptr + head * (2 * CHUNK) + CHUNK - 1
            whole = tl.load(decays + CHUNK)
            last = tl.load(decays + count - (chunks - 1) * CHUNK)
            for part in range(0, TOGETHER):
                here = top + part * BLOCK
                inside = lanes < SIZE - here
                state = tl.zeros((BLOCK,), tl.float32)
                at = states_ptr
                if STATEFUL:
                    at = states_ptr + as_int64(slot) * state_stride + head * SIZE + here
                    room = tl.where(held, SIZE - here, 0)
                    state = tl.load(at + lanes, mask=lanes < room, other=0.0).to(tl.float32)
                for c in range(0, chunks):
                    place = (as_int64(first + c) * HEADS + head) * SIZE + here
                    added = tl.load(added_ptr + place + lanes, mask=inside, other=0.0)
                    to = before_ptr + place + lanes
                    tl.store(to, state.to(before_ptr.dtype.element_ty), mask=inside)
                    state = state * tl.where(c < chunks - 1, whole, last) + added
                if STATEFUL:
                    tl.store(at + lanes, state.to(states_ptr.dtype.element_ty), mask=inside)


@triton.jit
def _output_kernel(
    query_ptr,
    key_ptr,
    value_ptr,
    slopes_ptr,
    table_ptr,
    decays_ptr,
    before_ptr,
    out_ptr,
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
):
    i = tl.arange(0, CHUNK)
    d, e = tl.arange(0, ROWS), tl.arange(0, COLUMNS)
    lag = (i[:, None] - i[None, :]).to(tl.float32)
    for part in range(tl.program_id(0), programs, tl.num_programs(0)):
        unit = part // HEADS
        head = part - unit * HEADS
        first, count = chunk_at(table_ptr, unit, CHUNK)
        out = out_ptr + (first * HEADS + head) * INNER
        out = out + i[:, None] * (HEADS * INNER) + e[None, :]
        if count > 0:
            slope = tl.load(slopes_ptr + head)
            query = query_ptr + first * query_stride + head * query_head_stride
            key = key_ptr + first * key_stride + head * key_head_stride
            value = value_ptr + first * value_stride + head * value_head_stride
            q = _tile(query, query_stride, i, count, WIDTH, ROWS)
            k = _tile(key, key_stride, i, count, WIDTH, ROWS)
            products = tl.dot(q, tl.trans(k), input_precision="ieee")
            weight = tl.where(lag >= 0.0, tl.exp(lag * slope * -1.0), 0.0)
            products = (products * weight).to(value_ptr.dtype.element_ty)
            v = _tile(value, value_stride, i, count, INNER, COLUMNS)
            total = tl.dot(products, v, input_precision="ieee")
            before = before_ptr + as_int64(part) * (WIDTH * INNER)
            state_mask = (d < WIDTH)[:, None] & (e < INNER)[None, :]
            state = tl.load(before + d[:, None] * INNER + e[None, :], mask=state_mask, other=0.0)
            decay = tl.load(decays_ptr + head * (2 * CHUNK) + CHUNK + i)
            read = tl.dot(q, state, input_precision="ieee")
            total += read * decay[:, None]
            mask = (i < count)[:, None] & (e < INNER)[None, :]
            tl.store(out, total.to(out_ptr.dtype.element_ty), mask=mask)
        else:
            nothing = tl.zeros((CHUNK, COLUMNS), out_ptr.dtype.element_ty)
            mask = (i < count * -1)[:, None] & (e < INNER)[None, :]
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
    units = tokens // CHUNK + requests
    carried = torch.empty((units + 1, heads, width, inner), dtype=torch.float32, device=out.device)
    start, slots = query_start.contiguous(), None if slots is None else slots.contiguous()
    slopes = slopes.contiguous()
    table, decays = chunk_table(start, slots, tokens), decays_of(slopes)
    shape: dict[str, Any] = {
        "HEADS": heads,
        "WIDTH": width,
        "INNER": inner,
        "CHUNK": CHUNK,
        "ROWS": max(next_power_of_two(width), _LEAST),
        "COLUMNS": max(next_power_of_two(inner), _LEAST),
    }
    pairs = {
        "key_ptr": key,
        "value_ptr": value,
        "table_ptr": table,
        "decays_ptr": decays,
        "key_stride": key.stride(0),
        "key_head_stride": key.stride(1),
        "value_stride": value.stride(0),
        "value_head_stride": value.stride(1),
    }
    programs = units * heads
    arguments = pairs | {"added_ptr": carried, "programs": programs}
    launch(_added_kernel, programs, arguments, shape, cube=True)
    # States are read by 16-bit queries in their dtype; they are carried on in float32.
    before = (
        carried if query.dtype == carried.dtype else torch.empty_like(carried, dtype=query.dtype)
    )
    _carry(carried, before, decays, start, states, slots, has_state, heads, width * inner)
    programs = (units + 1) * heads
    arguments = pairs | {
        "query_ptr": query,
        "slopes_ptr": slopes,
        "before_ptr": before,
        "out_ptr": out,
        "query_stride": query.stride(0),
        "query_head_stride": query.stride(1),
        "programs": programs,
    }
    launch(_output_kernel, programs, arguments, shape, cube=True)
    return out


def _carry(
    added: torch.Tensor,
    before: torch.Tensor,
    decays: torch.Tensor,
    start: torch.Tensor,
    states: torch.Tensor | None,
    slots: torch.Tensor | None,
    has_state: torch.Tensor | None,
    heads: int,
    size: int,
) -> None:
    block = block_of(
        current_facts(),
        streamed=4 + before.element_size(),
        local=12,
        maximum=min(_MOST_CARRIED, next_power_of_two(size)),
    )
    parts, pairs = -(-size // block), (start.shape[0] - 1) * heads
    # Two blocks share what is read about a request, unless some cores had none then.
    together = 2 if pairs * (parts // 2) >= current_facts().vector_cores else 1
    parts = -(-parts // together)
    programs = pairs * parts
    arguments = {
        "added_ptr": added,
        "before_ptr": before,
        "decays_ptr": decays,
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
        "CHUNK": CHUNK,
        "BLOCK": block,
        "TOGETHER": together,
        "STATEFUL": states is not None,
        "GIVEN": has_state is not None,
    }
    launch(_states_kernel, programs, arguments, constants)
