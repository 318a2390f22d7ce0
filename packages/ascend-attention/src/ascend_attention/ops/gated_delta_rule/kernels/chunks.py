"""What chunks make of keys and values, and the state's way through them, in Triton."""

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
    strides,
)
from ascend_attention.ops.gated_delta_rule.layout import CHUNK, chunk_table
from ascend_attention.ops.gated_delta_rule.tiles import SMALLEST, values_of_a_pass


@triton.jit
def _solve_kernel(
    key_ptr,
    value_ptr,
    sums_ptr,
    beta_ptr,
    table_ptr,
    inverse_ptr,
    w_ptr,
    u_ptr,
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
    CHANNELS: tl.constexpr,
    NORMALIZE: tl.constexpr,
):
    i = tl.arange(0, CHUNK)
    d = tl.arange(0, PADDED)
    v = tl.arange(0, PADDED_HEIGHT)
    for unit in range(tl.program_id(0), programs, tl.num_programs(0)):
        chunk = unit // HEADS
        head = unit - chunk * HEADS
        first = as_int64(tl.load(table_ptr + chunk * 2))
        count = tl.load(table_ptr + chunk * 2 + 1)
        real = i < count
        row = first * HEADS + head
        at = inverse_ptr + row * CHUNK
        inverse = load_rows(at, HEADS * CHUNK, count, CHUNK, CHUNK, CHUNK)
        beta = tl.load(beta_ptr + row + i * HEADS, mask=real, other=0.0).to(tl.float32)
        inverse = inverse * beta[None, :]
        at = key_ptr + first * key_token + as_int64(head // SHARED) * key_head
        keys = load_rows(at, key_token, count, WIDTH, PADDED, CHUNK)
        keys = keys / lengths(keys, NORMALIZE)[:, None]
        if CHANNELS:
            at = sums_ptr + row * WIDTH
            keys = keys * tl.exp(load_rows(at, HEADS * WIDTH, count, WIDTH, PADDED, CHUNK))
        else:
            sums = tl.load(sums_ptr + row + i * HEADS, mask=real, other=0.0)
            keys = keys * tl.exp(sums)[:, None]
        w = tl.dot(inverse, keys, input_precision="ieee")
        at = w_ptr + row * WIDTH + i[:, None] * (HEADS * WIDTH) + d[None, :]
        tl.store(at, w, mask=real[:, None] & (d < WIDTH)[None, :])
        at = value_ptr + first * value_token + as_int64(head) * value_head
        values = load_rows(at, value_token, count, HEIGHT, PADDED_HEIGHT, CHUNK)
        u = tl.dot(inverse, values, input_precision="ieee")
        at = u_ptr + row * HEIGHT + i[:, None] * (HEADS * HEIGHT) + v[None, :]
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
        state = load_rows(at_state, WIDTH, kept, WIDTH, PADDED, TAKEN)
        for chunk in range(0, (tokens + CHUNK - 1) // CHUNK):
            left = tokens - chunk * CHUNK
            count = tl.where(left < CHUNK, left, CHUNK)
            first = as_int64(begin + chunk * CHUNK)
            at = query_ptr + first * query_token + as_int64(head // SHARED) * query_head
            queries = load_rows(at, query_token, count, WIDTH, PADDED, CHUNK)
            queries = queries * (scale / lengths(queries, NORMALIZE))[:, None]
            at = key_ptr + first * key_token + as_int64(head // SHARED) * key_head
            keys = load_rows(at, key_token, count, WIDTH, PADDED, CHUNK)
            keys = keys / lengths(keys, NORMALIZE)[:, None]
            row = first * HEADS + head
            if CHANNELS:
                at = sums_ptr + row * WIDTH
                sums = load_rows(at, HEADS * WIDTH, count, WIDTH, PADDED, CHUNK)
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
            w = load_rows(w_ptr + row * WIDTH, HEADS * WIDTH, count, WIDTH, PADDED, CHUNK)
            at = u_ptr + row * HEIGHT + top
            u = load_rows(at, HEADS * HEIGHT, count, HEIGHT - top, TAKEN, CHUNK)
            inner = load_rows(inner_ptr + row * CHUNK, HEADS * CHUNK, count, CHUNK, CHUNK, CHUNK)
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
    w, u = (
        torch.empty((tokens, heads, size), dtype=torch.float32, device=device)
        for size in (width, height)
    )
    shared = {
        "HEADS": heads,
        "SHARED": heads // key.shape[1],
        "WIDTH": width,
        "PADDED": max(next_power_of_two(width), SMALLEST),
        "HEIGHT": height,
        "CHUNK": CHUNK,
        "CHANNELS": decay.dim() == 3,
        "NORMALIZE": normalize,
    }
    arguments = {
        "key_ptr": key,
        "value_ptr": value,
        "sums_ptr": sums,
        "beta_ptr": beta.contiguous(),
        "table_ptr": table,
        "inverse_ptr": inverses(system, table),
        "w_ptr": w,
        "u_ptr": u,
        **strides(key=key, value=value),
        "programs": table.shape[0] * heads,
    }
    constants = shared | {"PADDED_HEIGHT": max(next_power_of_two(height), SMALLEST)}
    launch(_solve_kernel, table.shape[0] * heads, arguments, constants, cube=True)
    taken = values_of_a_pass(current_facts(), height, requests * heads)
    programs = requests * heads * -(-height // taken)
    arguments = {
        "query_ptr": query,
        "key_ptr": key,
        "sums_ptr": sums,
        "w_ptr": w,
        "u_ptr": u,
        "inner_ptr": inner,
        "state_ptr": state,
        "bounds_ptr": cu_seqlens.contiguous(),
        "slots_ptr": state_indices.contiguous(),
        "has_ptr": has_state.contiguous(),
        "out_ptr": out,
        "scale": float(scale),
        **strides(query=query, key=key),
        "state_slot": state.stride(0),
        "programs": programs,
    }
    launch(_pass_kernel, programs, arguments, shared | {"TAKEN": taken}, cube=True)
    return out
