"""The gated delta rule in Triton: a loop over tokens for decode, three kernels for prompts.

Chunks are prepared independently of each other: sums of decays, products of keys and of queries,
the inverse of the triangular system, and what it makes of keys and values. One more kernel then
passes the state through the chunks of a request and has the outputs at once, so that no state
between two chunks reaches memory. Both kinds of decay share all of it: they differ in how the
products of a chunk are decayed. The formulas stand in :mod:`.chunked`.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from ascend_ops_core.devices import current_facts
from ascend_ops_core.kernels import as_int64
from ascend_ops_core.launch import launch
from ascend_ops_core.tiling import next_power_of_two

from ascend_attention.ops.gated_delta_rule.layout import CHUNK, chunk_table
from ascend_attention.ops.gated_delta_rule.tiles import (
    SMALLEST,
    columns_of_sums,
    rows_of_a_state,
    values_of_a_pass,
)

_EPSILON = tl.constexpr(1e-6)


@triton.jit
def _rows(at, row_stride, count, WIDTH: tl.constexpr, PADDED: tl.constexpr, ROWS: tl.constexpr):
    """``[ROWS, PADDED]`` float32; zeros behind ``count``."""
    r = tl.arange(0, ROWS)
    d = tl.arange(0, PADDED)
    mask = (r < count)[:, None] & (d < WIDTH)[None, :]
    return tl.load(at + r[:, None] * row_stride + d[None, :], mask=mask, other=0.0).to(tl.float32)


@triton.jit
def _lengths(rows, NORMALIZE: tl.constexpr):
    """What rows are divided by."""
    if NORMALIZE:
        return tl.sqrt(tl.sum(rows * rows, axis=1) + _EPSILON)
    return tl.full((rows.shape[0],), 1.0, tl.float32)


@triton.jit
def _sums_kernel(
    decay_ptr,
    table_ptr,
    sums_ptr,
    columns,
    programs,
    TILES: tl.constexpr,
    CHUNK: tl.constexpr,
    BLOCK: tl.constexpr,
):
    i = tl.arange(0, CHUNK)
    c = tl.arange(0, BLOCK)
    for unit in range(tl.program_id(0), programs, tl.num_programs(0)):
        chunk = unit // TILES
        column = (unit - chunk * TILES) * BLOCK
        first = tl.load(table_ptr + chunk * 2)
        count = tl.load(table_ptr + chunk * 2 + 1)
        mask = (i < count)[:, None] & (c < columns - column)[None, :]
        at = as_int64(first) * columns + column + i[:, None] * columns + c[None, :]
        decay = tl.load(decay_ptr + at, mask=mask, other=0.0)
        tl.store(sums_ptr + at, tl.cumsum(decay, axis=0), mask=mask)


@triton.jit
def _of_level(products, lower, differ, HALF: tl.constexpr):
    """The products of pairs that the middle of a block of ``2 * HALF`` tokens parts."""
    return tl.where(lower & (differ >= HALF) & (differ < 2 * HALF), products, 0.0)


@triton.jit
def _far(
    at,
    row_stride,
    sums,
    count,
    WIDTH: tl.constexpr,
    PADDED: tl.constexpr,
    CHUNK: tl.constexpr,
    HALF: tl.constexpr,
):
    """How far tokens on both sides of a block's middle decay up to it, or from it."""
    BLOCKS: tl.constexpr = CHUNK // (2 * HALF)
    b = tl.arange(0, BLOCKS) * (2 * HALF) + HALF
    d = tl.arange(0, PADDED)
    mask = (b < count)[:, None] & (d < WIDTH)[None, :]
    middle = tl.load(at + b[:, None] * row_stride + d[None, :], mask=mask, other=0.0)
    middle = tl.broadcast_to(middle[:, None, :], (BLOCKS, 2 * HALF, PADDED))
    return tl.exp(-tl.abs(sums - tl.reshape(middle, (CHUNK, PADDED))))


@triton.jit
def _merged(inverse, system, FIRST: tl.constexpr):
    """Inverses of blocks of twice the size, from those of blocks and what lies between two."""
    if FIRST:
        return inverse - system
    system = tl.dot(inverse, system, input_precision="ieee")
    return inverse - tl.dot(system, inverse, input_precision="ieee")


@triton.jit
def _prepare_kernel(
    query_ptr,
    key_ptr,
    value_ptr,
    sums_ptr,
    beta_ptr,
    table_ptr,
    w_ptr,
    u_ptr,
    inner_ptr,
    scale,
    query_token,
    query_head,
    key_token,
    key_head,
    value_token,
    value_head,
    programs,
    HEADS: tl.constexpr,
    SHARED: tl.constexpr,
    WIDTH: tl.constexpr,
    PADDED: tl.constexpr,
    HEIGHT: tl.constexpr,
    PADDED_HEIGHT: tl.constexpr,
    CHUNK: tl.constexpr,
    LEVELS: tl.constexpr,
    CHANNELS: tl.constexpr,
    NORMALIZE: tl.constexpr,
):
    i = tl.arange(0, CHUNK)
    d = tl.arange(0, PADDED)
    v = tl.arange(0, PADDED_HEIGHT)
    lower = i[:, None] >= i[None, :]
    # The highest bit in which two tokens differ is the level of the block that parts them.
    differ = i[:, None] ^ i[None, :]
    for unit in range(tl.program_id(0), programs, tl.num_programs(0)):
        chunk = unit // HEADS
        head = unit - chunk * HEADS
        first = as_int64(tl.load(table_ptr + chunk * 2))
        count = tl.load(table_ptr + chunk * 2 + 1)
        real = i < count
        at = key_ptr + first * key_token + as_int64(head // SHARED) * key_head
        keys = _rows(at, key_token, count, WIDTH, PADDED, CHUNK)
        keys = keys / _lengths(keys, NORMALIZE)[:, None]
        at = query_ptr + first * query_token + as_int64(head // SHARED) * query_head
        queries = _rows(at, query_token, count, WIDTH, PADDED, CHUNK)
        queries = queries * (scale / _lengths(queries, NORMALIZE))[:, None]
        at_beta = beta_ptr + first * HEADS + head + i * HEADS
        beta = tl.load(at_beta, mask=real, other=0.0).to(tl.float32)
        inverse = tl.where(differ == 0, 1.0, 0.0)
        if CHANNELS:
            at = sums_ptr + (first * HEADS + head) * WIDTH
            sums = _rows(at, HEADS * WIDTH, count, WIDTH, PADDED, CHUNK)
            alike = tl.sum(queries * keys, axis=1)
            inner = tl.where(differ == 0, alike[:, None], 0.0)
            for level in tl.static_range(0, LEVELS):
                far = _far(at, HEADS * WIDTH, sums, count, WIDTH, PADDED, CHUNK, 1 << level)
                near = keys * far
                found = tl.dot(queries * far, tl.trans(near), input_precision="ieee")
                inner = inner + _of_level(found, lower, differ, 1 << level)
                found = tl.dot(near, tl.trans(near), input_precision="ieee")
                system = _of_level(found, lower, differ, 1 << level) * beta[:, None]
                inverse = _merged(inverse, system, level == 0)
            grown = tl.exp(sums)
        else:
            sums = tl.load(sums_ptr + first * HEADS + head + i * HEADS, mask=real, other=0.0)
            # Behind the last token sums are zero, and their differences positive.
            pairs = lower & real[:, None]
            between = tl.where(pairs, sums[:, None] - sums[None, :], float("-inf"))
            between = tl.exp(between)
            inner = tl.dot(queries, tl.trans(keys), input_precision="ieee") * between
            whole = tl.dot(keys, tl.trans(keys), input_precision="ieee") * between
            whole = whole * beta[:, None]
            for level in tl.static_range(0, LEVELS):
                system = _of_level(whole, lower, differ, 1 << level)
                inverse = _merged(inverse, system, level == 0)
            grown = tl.exp(sums)[:, None]
        to = first * HEADS + head
        at = inner_ptr + to * CHUNK + i[:, None] * (HEADS * CHUNK) + i[None, :]
        tl.store(at, inner, mask=real[:, None])
        w = tl.dot(inverse, keys * grown * beta[:, None], input_precision="ieee")
        at = w_ptr + to * WIDTH + i[:, None] * (HEADS * WIDTH) + d[None, :]
        tl.store(at, w, mask=real[:, None] & (d < WIDTH)[None, :])
        at = value_ptr + first * value_token + as_int64(head) * value_head
        values = _rows(at, value_token, count, HEIGHT, PADDED_HEIGHT, CHUNK)
        u = tl.dot(inverse, values * beta[:, None], input_precision="ieee")
        at = u_ptr + to * HEIGHT + i[:, None] * (HEADS * HEIGHT) + v[None, :]
        tl.store(at, u, mask=real[:, None] & (v < HEIGHT)[None, :])


@triton.jit
def _pass_kernel(
    query_ptr,
    key_ptr,
    sums_ptr,
    w_ptr,
    u_ptr,
    inner_ptr,
    state_ptr,
    bounds_ptr,
    slots_ptr,
    has_ptr,
    out_ptr,
    scale,
    query_token,
    query_head,
    key_token,
    key_head,
    state_slot,
    programs,
    HEADS: tl.constexpr,
    SHARED: tl.constexpr,
    WIDTH: tl.constexpr,
    PADDED: tl.constexpr,
    HEIGHT: tl.constexpr,
    TAKEN: tl.constexpr,
    CHUNK: tl.constexpr,
    CHANNELS: tl.constexpr,
    NORMALIZE: tl.constexpr,
):
    TILES: tl.constexpr = (HEIGHT + TAKEN - 1) // TAKEN
    i = tl.arange(0, CHUNK)
    d = tl.arange(0, PADDED)
    v = tl.arange(0, TAKEN)
    for unit in range(tl.program_id(0), programs, tl.num_programs(0)):
        pair = unit // TILES
        top = (unit - pair * TILES) * TAKEN
        request = pair // HEADS
        head = pair - request * HEADS
        begin = tl.load(bounds_ptr + request)
        slot = tl.load(slots_ptr + request)
        # A request without a slot has no chunk, and of its state no row.
        tokens = tl.where(slot > 0, tl.load(bounds_ptr + request + 1) - begin, 0)
        height = tl.where(tokens > 0, HEIGHT - top, 0)
        kept = tl.where(tl.load(has_ptr + request) != 0, height, 0)
        at_state = state_ptr + as_int64(slot) * state_slot + (head * HEIGHT + top) * WIDTH
        state = _rows(at_state, WIDTH, kept, WIDTH, PADDED, TAKEN)
        for chunk in range(0, (tokens + CHUNK - 1) // CHUNK):
            left = tokens - chunk * CHUNK
            count = tl.where(left < CHUNK, left, CHUNK)
            first = as_int64(begin + chunk * CHUNK)
            at = query_ptr + first * query_token + as_int64(head // SHARED) * query_head
            queries = _rows(at, query_token, count, WIDTH, PADDED, CHUNK)
            queries = queries * (scale / _lengths(queries, NORMALIZE))[:, None]
            at = key_ptr + first * key_token + as_int64(head // SHARED) * key_head
            keys = _rows(at, key_token, count, WIDTH, PADDED, CHUNK)
            keys = keys / _lengths(keys, NORMALIZE)[:, None]
            row = first * HEADS + head
            if CHANNELS:
                at = sums_ptr + row * WIDTH
                sums = _rows(at, HEADS * WIDTH, count, WIDTH, PADDED, CHUNK)
                at_total = at + (count - 1) * (HEADS * WIDTH) + d
                total = tl.load(at_total, mask=d < WIDTH, other=0.0)
                shrunk = tl.exp(total)[None, :]
                late = keys * tl.exp(total[None, :] - sums)
                early = queries * tl.exp(sums)
            else:
                at = sums_ptr + row
                sums = tl.load(at + i * HEADS, mask=i < count, other=0.0)
                total = tl.load(at + (count - 1) * HEADS)
                shrunk = tl.exp(total)
                late = keys * tl.exp(total - sums)[:, None]
                early = queries * tl.exp(sums)[:, None]
            w = _rows(w_ptr + row * WIDTH, HEADS * WIDTH, count, WIDTH, PADDED, CHUNK)
            at = u_ptr + row * HEIGHT + top
            u = _rows(at, HEADS * HEIGHT, count, HEIGHT - top, TAKEN, CHUNK)
            inner = _rows(inner_ptr + row * CHUNK, HEADS * CHUNK, count, CHUNK, CHUNK, CHUNK)
            change = u - tl.dot(w, tl.trans(state), input_precision="ieee")
            out = tl.dot(early, tl.trans(state), input_precision="ieee")
            out = out + tl.dot(inner, change, input_precision="ieee")
            added = tl.dot(tl.trans(change), late, input_precision="ieee")
            state = state * shrunk + added
            at = out_ptr + row * HEIGHT + top + i[:, None] * (HEADS * HEIGHT) + v[None, :]
            mask = (i < count)[:, None] & (v < HEIGHT - top)[None, :]
            tl.store(at, out.to(out_ptr.dtype.element_ty), mask=mask)
        at = at_state + v[:, None] * WIDTH + d[None, :]
        mask = (v < height)[:, None] & (d < WIDTH)[None, :]
        tl.store(at, state.to(state_ptr.dtype.element_ty), mask=mask)


@triton.jit
def _recurrent_kernel(
    query_ptr,
    key_ptr,
    value_ptr,
    decay_ptr,
    beta_ptr,
    state_ptr,
    bounds_ptr,
    slots_ptr,
    accepted_ptr,
    out_ptr,
    scale,
    query_token,
    query_head,
    key_token,
    key_head,
    value_token,
    value_head,
    state_slot,
    places,
    programs,
    HEADS: tl.constexpr,
    SHARED: tl.constexpr,
    WIDTH: tl.constexpr,
    PADDED: tl.constexpr,
    HEIGHT: tl.constexpr,
    TAKEN: tl.constexpr,
    CHANNELS: tl.constexpr,
    NORMALIZE: tl.constexpr,
    DRAFTS: tl.constexpr,
):
    TILES: tl.constexpr = (HEIGHT + TAKEN - 1) // TAKEN
    d = tl.arange(0, PADDED)
    v = tl.arange(0, TAKEN)
    for unit in range(tl.program_id(0), programs, tl.num_programs(0)):
        pair = unit // TILES
        top = (unit - pair * TILES) * TAKEN
        request = pair // HEADS
        head = pair - request * HEADS
        begin = tl.load(bounds_ptr + request)
        slots = slots_ptr + request * places
        column = 0
        if DRAFTS:
            column = tl.load(accepted_ptr + request) - 1
        slot = tl.load(slots + column)
        tokens = tl.where(slot > 0, tl.load(bounds_ptr + request + 1) - begin, 0)
        inside = (head * HEIGHT + top) * WIDTH
        height = tl.where(tokens > 0, HEIGHT - top, 0)
        at = state_ptr + as_int64(slot) * state_slot + inside
        state = _rows(at, WIDTH, height, WIDTH, PADDED, TAKEN)
        for j in range(0, tokens):
            token = as_int64(begin + j)
            at = query_ptr + token * query_token + as_int64(head // SHARED) * query_head
            query = tl.load(at + d, mask=d < WIDTH, other=0.0).to(tl.float32)
            at = key_ptr + token * key_token + as_int64(head // SHARED) * key_head
            key = tl.load(at + d, mask=d < WIDTH, other=0.0).to(tl.float32)
            if NORMALIZE:
                query = query / tl.sqrt(tl.sum(query * query, axis=0) + _EPSILON)
                key = key / tl.sqrt(tl.sum(key * key, axis=0) + _EPSILON)
            at = value_ptr + token * value_token + as_int64(head) * value_head + top
            value = tl.load(at + v, mask=v < HEIGHT - top, other=0.0).to(tl.float32)
            row = token * HEADS + head
            beta = tl.load(beta_ptr + row).to(tl.float32)
            if CHANNELS:
                decay = tl.load(decay_ptr + row * WIDTH + d, mask=d < WIDTH, other=0.0)
                state = state * tl.exp(decay)[None, :]
            else:
                state = state * tl.exp(tl.load(decay_ptr + row))
            change = (value - tl.sum(state * key[None, :], axis=1)) * beta
            state = state + change[:, None] * key[None, :]
            out = tl.sum(state * (query * scale)[None, :], axis=1)
            at = out_ptr + row * HEIGHT + top + v
            tl.store(at, out.to(out_ptr.dtype.element_ty), mask=v < HEIGHT - top)
            place = tl.where(j < places - 1, j, places - 1)
            slot = tl.load(slots + place)
            # The last of the slots is that of the last token.
            stays = (slot > 0) & ((j < places - 1) | (j == tokens - 1))
            height = tl.where(stays, HEIGHT - top, 0)
            at = state_ptr + as_int64(slot) * state_slot + inside
            at = at + v[:, None] * WIDTH + d[None, :]
            mask = (v < height)[:, None] & (d < WIDTH)[None, :]
            tl.store(at, state.to(state_ptr.dtype.element_ty), mask=mask)


def recurrent_gated_delta_rule(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    decay: torch.Tensor,
    beta: torch.Tensor,
    state: torch.Tensor,
    cu_seqlens: torch.Tensor,
    state_indices: torch.Tensor,
    accepted: torch.Tensor | None,
    scale: float,
    normalize: bool,
) -> torch.Tensor:
    """See :func:`ascend_attention.ops.gated_delta_rule.recurrent_gated_delta_rule`."""
    query, key, value = (_dense_rows(x) for x in (query, key, value))
    heads, height = value.shape[1:]
    width, requests = key.shape[2], cu_seqlens.shape[0] - 1
    out = torch.zeros(value.shape, dtype=value.dtype, device=value.device)
    padded = max(next_power_of_two(width), SMALLEST)
    taken = rows_of_a_state(current_facts(), padded, height, requests * heads, state.element_size())
    slots = state_indices.contiguous()
    programs = requests * heads * -(-height // taken)
    arguments = {
        "query_ptr": query,
        "key_ptr": key,
        "value_ptr": value,
        "decay_ptr": decay.contiguous(),
        "beta_ptr": beta.contiguous(),
        "state_ptr": state,
        "bounds_ptr": cu_seqlens.contiguous(),
        "slots_ptr": slots,
        "accepted_ptr": slots if accepted is None else accepted.contiguous(),
        "out_ptr": out,
        "scale": float(scale),
        **_strides(query=query, key=key, value=value),
        "state_slot": state.stride(0),
        "places": slots.shape[1],
        "programs": programs if query.shape[0] else 0,
    }
    constants = {
        "HEADS": heads,
        "SHARED": heads // key.shape[1],
        "WIDTH": width,
        "PADDED": padded,
        "HEIGHT": height,
        "TAKEN": taken,
        "CHANNELS": decay.dim() == 3,
        "NORMALIZE": normalize,
        "DRAFTS": accepted is not None,
    }
    launch(_recurrent_kernel, arguments["programs"], arguments, constants)
    return out


def chunk_gated_delta_rule(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    decay: torch.Tensor,
    beta: torch.Tensor,
    state: torch.Tensor,
    cu_seqlens: torch.Tensor,
    state_indices: torch.Tensor,
    has_state: torch.Tensor,
    scale: float,
    normalize: bool,
    chunks: torch.Tensor | None,
) -> torch.Tensor:
    """See :func:`ascend_attention.ops.gated_delta_rule.chunk_gated_delta_rule`."""
    query, key, value = (_dense_rows(x) for x in (query, key, value))
    tokens, heads, height = value.shape
    width, requests, device = key.shape[2], cu_seqlens.shape[0] - 1, value.device
    out = torch.zeros(value.shape, dtype=value.dtype, device=device)
    if not tokens:
        return out
    facts = current_facts()
    table = chunk_table(cu_seqlens, tokens) if chunks is None else chunks.contiguous()
    padded = max(next_power_of_two(width), SMALLEST)
    columns = decay[0].numel()
    block = columns_of_sums(facts, columns)
    tiles = -(-columns // block)
    sums = torch.empty_like(decay, memory_format=torch.contiguous_format)
    arguments = {
        "decay_ptr": decay.contiguous(),
        "table_ptr": table,
        "sums_ptr": sums,
        "columns": columns,
        "programs": table.shape[0] * tiles,
    }
    constants = {"TILES": tiles, "CHUNK": CHUNK, "BLOCK": block}
    launch(_sums_kernel, table.shape[0] * tiles, arguments, constants)
    w, u, inner = (
        torch.empty((tokens, heads, size), dtype=torch.float32, device=device)
        for size in (width, height, CHUNK)
    )
    shared = {
        "HEADS": heads,
        "SHARED": heads // key.shape[1],
        "WIDTH": width,
        "PADDED": padded,
        "HEIGHT": height,
        "CHUNK": CHUNK,
        "CHANNELS": decay.dim() == 3,
        "NORMALIZE": normalize,
    }
    made = {"sums_ptr": sums, "w_ptr": w, "u_ptr": u, "inner_ptr": inner}
    arguments = {
        "query_ptr": query,
        "key_ptr": key,
        "value_ptr": value,
        "beta_ptr": beta.contiguous(),
        "table_ptr": table,
        **made,
        "scale": float(scale),
        **_strides(query=query, key=key, value=value),
        "programs": table.shape[0] * heads,
    }
    constants = shared | {
        "PADDED_HEIGHT": max(next_power_of_two(height), SMALLEST),
        "LEVELS": CHUNK.bit_length() - 1,
    }
    launch(_prepare_kernel, table.shape[0] * heads, arguments, constants, cube=True)
    taken = values_of_a_pass(facts, height, requests * heads)
    programs = requests * heads * -(-height // taken)
    arguments = {
        "query_ptr": query,
        "key_ptr": key,
        **made,
        "state_ptr": state,
        "bounds_ptr": cu_seqlens.contiguous(),
        "slots_ptr": state_indices.contiguous(),
        "has_ptr": has_state.contiguous(),
        "out_ptr": out,
        "scale": float(scale),
        **_strides(query=query, key=key),
        "state_slot": state.stride(0),
        "programs": programs,
    }
    launch(_pass_kernel, programs, arguments, shared | {"TAKEN": taken}, cube=True)
    return out


def _dense_rows(x: torch.Tensor) -> torch.Tensor:
    """Without gaps inside a head's row."""
    return x if x.stride(2) == 1 else x.contiguous()


def _strides(**tensors: torch.Tensor) -> dict[str, int]:
    """Of tokens and heads."""
    return {
        f"{name}_{axis}": tensor.stride(i)
        for name, tensor in tensors.items()
        for i, axis in enumerate(("token", "head"))
    }
