"""Lightning attention by tokens: a program has a request's head and columns of its state."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from ascend_ops_core.devices import current_facts
from ascend_ops_core.kernels import as_int64
from ascend_ops_core.launch import launch
from ascend_ops_core.tiling import block_of, next_power_of_two


@triton.jit
def _decode_kernel(
    query_ptr,
    key_ptr,
    value_ptr,
    slopes_ptr,
    start_ptr,
    states_ptr,
    slots_ptr,
    accepted_ptr,
    out_ptr,
    tokens,
    requests,
    query_stride,
    query_head_stride,
    key_stride,
    key_head_stride,
    value_stride,
    value_head_stride,
    state_stride,
    columns,
    programs,
    HEADS: tl.constexpr,
    WIDTH: tl.constexpr,
    INNER: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    DRAFTED: tl.constexpr,
):
    parts: tl.constexpr = (INNER + COLUMNS - 1) // COLUMNS
    d = tl.arange(0, ROWS)
    for part in range(tl.program_id(0), programs, tl.num_programs(0)):
        pair = part // parts
        e = (part - pair * parts) * COLUMNS + tl.arange(0, COLUMNS)
        mask = (d < WIDTH)[:, None] & (e < INNER)[None, :]
        tile = d[:, None] * INNER + e[None, :]
        r = pair // HEADS
        head = pair - r * HEADS
        real = r < requests
        row = tl.where(real, r, 0)
        begin = tl.load(start_ptr + r).to(tl.int32)
        end = tl.load(start_ptr + tl.where(real, r + 1, r)).to(tl.int32)
        end = tl.where(real, end, tokens)
        slots = slots_ptr + row * columns
        slot = tl.load(slots, mask=real, other=0).to(tl.int32)
        if (slot > 0) & (end > begin):
            if DRAFTED:
                column = tl.load(accepted_ptr + row).to(tl.int32) - 1
                slot = tl.load(slots + column).to(tl.int32)
            decay = tl.exp(tl.load(slopes_ptr + head) * -1.0)
            states = states_ptr + head * (WIDTH * INNER)
            state = tl.load(states + as_int64(slot) * state_stride + tile, mask=mask, other=0.0)
            state = state.to(tl.float32)
            for t in range(begin, end):
                k = key_ptr + as_int64(t) * key_stride + head * key_head_stride
                k = tl.load(k + d, mask=d < WIDTH, other=0.0).to(tl.float32)
                v = value_ptr + as_int64(t) * value_stride + head * value_head_stride
                v = tl.load(v + e, mask=e < INNER, other=0.0).to(tl.float32)
                q = query_ptr + as_int64(t) * query_stride + head * query_head_stride
                q = tl.load(q + d, mask=d < WIDTH, other=0.0).to(tl.float32)
                state = state * decay + k[:, None] * v[None, :]
                total = tl.sum(q[:, None] * state, axis=0)
                to = out_ptr + (as_int64(t) * HEADS + head) * INNER + e
                tl.store(to, total.to(out_ptr.dtype.element_ty), mask=e < INNER)
                slot = tl.load(slots + t - begin).to(tl.int32)
                if slot > 0:
                    kept = states + as_int64(slot) * state_stride + tile
                    tl.store(kept, state.to(states_ptr.dtype.element_ty), mask=mask)
        else:
            nothing = tl.zeros((COLUMNS,), out_ptr.dtype.element_ty)
            for t in range(begin, end):
                to = out_ptr + (as_int64(t) * HEADS + head) * INNER + e
                tl.store(to, nothing, mask=e < INNER)


def lightning_decode(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    slopes: torch.Tensor,
    query_start: torch.Tensor,
    states: torch.Tensor,
    slots: torch.Tensor,
    accepted: torch.Tensor | None,
) -> torch.Tensor:
    """See :func:`ascend_attention.ops.lightning_attention.lightning_decode`."""
    tokens, heads, width = query.shape
    inner, requests = value.shape[2], query_start.shape[0] - 1
    out = torch.empty(value.shape, dtype=value.dtype, device=value.device)
    rows = next_power_of_two(width)
    # What is alive of a state: itself, what is added, and its product with the query.
    values = block_of(current_facts(), streamed=4, local=8, maximum=rows * next_power_of_two(inner))
    columns = max(1, values // rows)
    # Padding behind the last request is one request more, of which nothing is read.
    programs = (requests + 1) * heads * -(-inner // columns) if tokens else 0
    arguments = {
        "query_ptr": query,
        "key_ptr": key,
        "value_ptr": value,
        "slopes_ptr": slopes,
        "start_ptr": query_start.contiguous(),
        "states_ptr": states,
        "slots_ptr": slots.contiguous(),
        "accepted_ptr": None if accepted is None else accepted.contiguous(),
        "out_ptr": out,
        "tokens": tokens,
        "requests": requests,
        "query_stride": query.stride(0),
        "query_head_stride": query.stride(1),
        "key_stride": key.stride(0),
        "key_head_stride": key.stride(1),
        "value_stride": value.stride(0),
        "value_head_stride": value.stride(1),
        "state_stride": states.stride(0),
        "columns": slots.shape[1],
        "programs": programs,
    }
    constants = {
        "HEADS": heads,
        "WIDTH": width,
        "INNER": inner,
        "ROWS": rows,
        "COLUMNS": columns,
        "DRAFTED": accepted is not None,
    }
    launch(_decode_kernel, programs, arguments, constants)
    return out
