"""What chunks make of keys and values, and the state's way through them, in Triton.

Products take operands of the inputs' dtype and add in float32, as the matrix unit does several
times faster for 16 bits than for float32. Decays, the inverse, and the state itself are float32
until they are operands.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from ascend_ops_core.devices import current_facts
from ascend_ops_core.kernels import as_int64
from ascend_ops_core.launch import launch
from ascend_ops_core.tiling import next_power_of_two

from ascend_attention.ops.gated_delta_rule.kernels.inverse import inverses
from ascend_attention.ops.gated_delta_rule.kernels.products import products
from ascend_attention.ops.gated_delta_rule.kernels.rows import (
    dense_rows,
    lengths,
    load_rows,
    raw_rows,
    strides,
)
from ascend_attention.ops.gated_delta_rule.layout import CHUNK, chunk_table
from ascend_attention.ops.gated_delta_rule.tiles import smallest_of, values_of_a_pass


@triton.jit
def _operands_kernel(
    query_ptr,
    key_ptr,
    sums_ptr,
    beta_ptr,
    table_ptr,
    inverse_ptr,
    solved_ptr,
    seen_ptr,
    readers_ptr,
    writers_ptr,
    scale,
    query_token,
    query_head,
    key_token,
    key_head,
    programs,
    HEADS: tl.constexpr,
    SHARED: tl.constexpr,
    WIDTH: tl.constexpr,
    PADDED: tl.constexpr,
    CHUNK: tl.constexpr,
    CHANNELS: tl.constexpr,
    NORMALIZE: tl.constexpr,
):
    """What a chunk multiplies values and states with, in the dtype of keys."""
    i = tl.arange(0, CHUNK)
    d = tl.arange(0, PADDED)
    for unit in range(tl.program_id(0), programs, tl.num_programs(0)):
        chunk = unit // HEADS
        head = unit - chunk * HEADS
        first = as_int64(tl.load(table_ptr + chunk * 2))
        count = tl.load(table_ptr + chunk * 2 + 1)
        last = tl.where(count > 0, count - 1, 0)
        real = i < count
        row = first * HEADS + head
        beta = tl.load(beta_ptr + row + i * HEADS, mask=real, other=0.0).to(tl.float32)
        at = row * CHUNK + i[:, None] * (HEADS * CHUNK) + i[None, :]
        solved = tl.load(inverse_ptr + at, mask=real[:, None], other=0.0) * beta[None, :]
        solved = solved.to(solved_ptr.dtype.element_ty)
        tl.store(solved_ptr + at, solved, mask=real[:, None])
        if CHANNELS:
            at = sums_ptr + row * WIDTH
            sums = load_rows(at, HEADS * WIDTH, count, WIDTH, PADDED, CHUNK)
            at = at + last * (HEADS * WIDTH) + d
            left = tl.exp(tl.load(at, mask=d < WIDTH, other=0.0)[None, :] - sums)
            grown = tl.exp(sums)
        else:
            at = sums_ptr + row
            sums = tl.load(at + i * HEADS, mask=real, other=0.0)
            left = tl.exp(tl.load(at + last * HEADS) - sums)[:, None]
            grown = tl.exp(sums)[:, None]
        to = row * WIDTH + i[:, None] * (HEADS * WIDTH) + d[None, :]
        mask = real[:, None] & (d < WIDTH)[None, :]
        at = query_ptr + first * query_token + as_int64(head // SHARED) * query_head
        rows = load_rows(at, query_token, count, WIDTH, PADDED, CHUNK)
        rows = rows * (scale / lengths(rows, NORMALIZE))[:, None] * grown
        tl.store(readers_ptr + to, rows.to(readers_ptr.dtype.element_ty), mask=mask)
        at = key_ptr + first * key_token + as_int64(head // SHARED) * key_head
        rows = load_rows(at, key_token, count, WIDTH, PADDED, CHUNK)
        # Negative, so that the matrix unit can take from values what a state says about keys.
        rows = rows * (-1.0 / lengths(rows, NORMALIZE))[:, None]
        tl.store(writers_ptr + to, (rows * left).to(writers_ptr.dtype.element_ty), mask=mask)
        rows = (rows * grown).to(seen_ptr.dtype.element_ty)
        seen = tl.dot(solved, rows, input_precision="ieee")
        tl.store(seen_ptr + to, seen.to(seen_ptr.dtype.element_ty), mask=mask)


@triton.jit
def _lost(
    at_values,
    at_out,
    state,
    solved,
    seen,
    readers,
    writers,
    inner,
    count,
    value_token,
    out_token,
    height,
    TAKEN: tl.constexpr,
    CHUNK: tl.constexpr,
):
    """What rows of a state lose in a chunk, of which there are ``height``; stores their outputs.

    Everything but the state, and all operands, are of one dtype.
    """
    i = tl.arange(0, CHUNK)
    v = tl.arange(0, TAKEN)
    values = raw_rows(at_values, value_token, count, height, TAKEN, CHUNK)
    held = tl.trans(state.to(values.dtype))
    # Both products are added before anything is rounded, so where the state already says what the
    # values are, only the operands' own rounding is left.
    change = tl.dot(solved, values, input_precision="ieee")
    change = tl.dot(seen, held, change, input_precision="ieee").to(values.dtype)
    out = tl.dot(readers, held, input_precision="ieee")
    out = tl.dot(inner, change, out, input_precision="ieee").to(values.dtype)
    mask = (i < count)[:, None] & (v < height)[None, :]
    tl.store(at_out + i[:, None] * out_token + v[None, :], out, mask=mask)
    return tl.dot(tl.trans(change), writers, input_precision="ieee")


@triton.jit
def _pass_kernel(
    value_ptr,
    sums_ptr,
    solved_ptr,
    seen_ptr,
    readers_ptr,
    writers_ptr,
    inner_ptr,
    state_ptr,
    bounds_ptr,
    slots_ptr,
    has_ptr,
    out_ptr,
    value_token,
    value_head,
    state_slot,
    programs,
    HEADS: tl.constexpr,
    WIDTH: tl.constexpr,
    PADDED: tl.constexpr,
    HEIGHT: tl.constexpr,
    TAKEN: tl.constexpr,
    PARTS: tl.constexpr,
    CHUNK: tl.constexpr,
    CHANNELS: tl.constexpr,
):
    """Chunk after chunk, with one or two parts of a head's state, which stays in float32."""
    ROWS: tl.constexpr = TAKEN * PARTS
    TILES: tl.constexpr = (HEIGHT + ROWS - 1) // ROWS
    d = tl.arange(0, PADDED)
    v = tl.arange(0, TAKEN)
    for unit in range(tl.program_id(0), programs, tl.num_programs(0)):
        pair = unit // TILES
        top = (unit - pair * TILES) * ROWS
        request = pair // HEADS
        head = pair - request * HEADS
        begin = tl.load(bounds_ptr + request)
        slot = tl.load(slots_ptr + request)
        # A request without a slot has no chunk, and of its state no row.
        tokens = tl.where(slot > 0, tl.load(bounds_ptr + request + 1) - begin, 0)
        height = tl.where(tokens > 0, HEIGHT - top, 0)
        kept = tl.where(tl.load(has_ptr + request) != 0, height, 0)
        at_state = state_ptr + as_int64(slot) * state_slot + (head * HEIGHT + top) * WIDTH
        state = load_rows(at_state, WIDTH, kept, WIDTH, PADDED, TAKEN)
        if PARTS == 2:
            at_lower = at_state + TAKEN * WIDTH
            lower = load_rows(at_lower, WIDTH, kept - TAKEN, WIDTH, PADDED, TAKEN)
        for chunk in range(0, (tokens + CHUNK - 1) // CHUNK):
            left = tokens - chunk * CHUNK
            count = tl.where(left < CHUNK, left, CHUNK)
            first = as_int64(begin + chunk * CHUNK)
            row = first * HEADS + head
            if CHANNELS:
                at = sums_ptr + (row + (count - 1) * HEADS) * WIDTH
                shrunk = tl.exp(tl.load(at + d, mask=d < WIDTH, other=0.0))[None, :]
            else:
                shrunk = tl.exp(tl.load(sums_ptr + row + (count - 1) * HEADS))
            at = solved_ptr + row * CHUNK
            solved = raw_rows(at, HEADS * CHUNK, count, CHUNK, CHUNK, CHUNK)
            at = inner_ptr + row * CHUNK
            inner = raw_rows(at, HEADS * CHUNK, count, CHUNK, CHUNK, CHUNK)
            at = seen_ptr + row * WIDTH
            seen = raw_rows(at, HEADS * WIDTH, count, WIDTH, PADDED, CHUNK)
            at = readers_ptr + row * WIDTH
            readers = raw_rows(at, HEADS * WIDTH, count, WIDTH, PADDED, CHUNK)
            at = writers_ptr + row * WIDTH
            writers = raw_rows(at, HEADS * WIDTH, count, WIDTH, PADDED, CHUNK)
            at = value_ptr + first * value_token + as_int64(head) * value_head + top
            to = out_ptr + row * HEIGHT + top
            lost = _lost(
                at, to, state, solved, seen, readers, writers, inner, count, value_token,
                HEADS * HEIGHT, HEIGHT - top, TAKEN, CHUNK,
            )  # fmt: skip
            state = state * shrunk - lost
            if PARTS == 2:
                lost = _lost(
                    at + TAKEN, to + TAKEN, lower, solved, seen, readers, writers, inner, count,
                    value_token, HEADS * HEIGHT, HEIGHT - top - TAKEN, TAKEN, CHUNK,
                )  # fmt: skip
                lower = lower * shrunk - lost
        tile = v[:, None] * WIDTH + d[None, :]
        mask = (v < height)[:, None] & (d < WIDTH)[None, :]
        tl.store(at_state + tile, state.to(state_ptr.dtype.element_ty), mask=mask)
        if PARTS == 2:
            mask = (v < height - TAKEN)[:, None] & (d < WIDTH)[None, :]
            tl.store(at_lower + tile, lower.to(state_ptr.dtype.element_ty), mask=mask)


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
    query, key, value = (dense_rows(x) for x in (query, key, value))
    tokens, heads, height = value.shape
    width, requests, device = key.shape[2], cu_seqlens.shape[0] - 1, value.device
    out = torch.zeros(value.shape, dtype=value.dtype, device=device)
    if not tokens:
        return out
    table = chunk_table(cu_seqlens, tokens) if chunks is None else chunks.contiguous()
    sums, system, inner = products(query, key, decay, beta, table, scale, normalize)
    solved, seen, readers, writers = (
        torch.empty((tokens, heads, size), dtype=key.dtype, device=device)
        for size in (CHUNK, width, width, width)
    )
    sizes = {
        "HEADS": heads,
        "WIDTH": width,
        "PADDED": max(next_power_of_two(width), smallest_of(key.dtype.itemsize)),
        "CHUNK": CHUNK,
        "CHANNELS": decay.dim() == 3,
    }
    made = {
        "sums_ptr": sums,
        "solved_ptr": solved,
        "seen_ptr": seen,
        "readers_ptr": readers,
        "writers_ptr": writers,
    }
    programs = table.shape[0] * heads
    arguments = made | {
        "query_ptr": query,
        "key_ptr": key,
        "beta_ptr": beta.contiguous(),
        "table_ptr": table,
        "inverse_ptr": inverses(system, table),
        "scale": float(scale),
        **strides(query=query, key=key),
        "programs": programs,
    }
    constants = sizes | {"SHARED": heads // key.shape[1], "NORMALIZE": normalize}
    launch(_operands_kernel, programs, arguments, constants, cube=True)
    pairs = requests * heads
    taken, parts = values_of_a_pass(current_facts(), height, pairs, value.dtype.itemsize)
    programs = pairs * -(-height // (taken * parts))
    arguments = made | {
        "value_ptr": value,
        "inner_ptr": inner,
        "state_ptr": state,
        "bounds_ptr": cu_seqlens.contiguous(),
        "slots_ptr": state_indices.contiguous(),
        "has_ptr": has_state.contiguous(),
        "out_ptr": out,
        **strides(value=value),
        "state_slot": state.stride(0),
        "programs": programs,
    }
    constants = sizes | {"HEIGHT": height, "TAKEN": taken, "PARTS": parts}
    launch(_pass_kernel, programs, arguments, constants, cube=True)
    return out
