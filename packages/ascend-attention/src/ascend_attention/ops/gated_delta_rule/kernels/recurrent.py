"""The recurrence in Triton: part of a state stays in the unified buffer while tokens go by."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from ascend_ops_core.devices import current_facts
from ascend_ops_core.kernels import as_int64
from ascend_ops_core.launch import launch
from ascend_ops_core.tiling import next_power_of_two

from ascend_attention.ops.gated_delta_rule.kernels.rows import (
    EPSILON,
    dense_rows,
    load_rows,
    strides,
)
from ascend_attention.ops.gated_delta_rule.tiles import SMALLEST, rows_of_a_state


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
        at_state = state_ptr + as_int64(slot) * state_slot + inside
        state = load_rows(at_state, WIDTH, height, WIDTH, PADDED, TAKEN)
        for j in range(0, tokens):
            token = as_int64(begin + j)
            at = query_ptr + token * query_token + as_int64(head // SHARED) * query_head
            query = tl.load(at + d, mask=d < WIDTH, other=0.0).to(tl.float32)
            at = key_ptr + token * key_token + as_int64(head // SHARED) * key_head
            key = tl.load(at + d, mask=d < WIDTH, other=0.0).to(tl.float32)
            if NORMALIZE:
                query = query / tl.sqrt(tl.sum(query * query, axis=0) + EPSILON)
                key = key / tl.sqrt(tl.sum(key * key, axis=0) + EPSILON)
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
            to = tl.load(slots + place)
            # The last of the slots is that of the last token.
            stays = (to > 0) & ((j < places - 1) | (j == tokens - 1))
            rows = tl.where(stays, HEIGHT - top, 0)
            at_rows = state_ptr + as_int64(to) * state_slot + inside
            at_rows = at_rows + v[:, None] * WIDTH + d[None, :]
            mask = (v < rows)[:, None] & (d < WIDTH)[None, :]
            tl.store(at_rows, state.to(state_ptr.dtype.element_ty), mask=mask)


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
    query, key, value = (dense_rows(x) for x in (query, key, value))
    heads, height = value.shape[1:]
    width, requests = key.shape[2], cu_seqlens.shape[0] - 1
    out = torch.zeros(value.shape, dtype=value.dtype, device=value.device)
    padded = max(next_power_of_two(width), SMALLEST)
    taken = rows_of_a_state(current_facts(), padded, height, requests * heads, state.element_size())
    slots = state_indices.contiguous()
    programs = requests * heads * -(-height // taken) if query.shape[0] else 0
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
        **strides(query=query, key=key, value=value),
        "state_slot": state.stride(0),
        "places": slots.shape[1],
        "programs": programs,
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
    launch(_recurrent_kernel, programs, arguments, constants)
    return out
