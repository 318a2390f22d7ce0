"""Attention within sequences in Triton: tokens of one head over the keys of their sequences.

Which sequences a tile of tokens touches is found on the device, so a captured graph serves any
lengths of as many tokens.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import triton
import triton.language as tl
from ascend_ops_core.devices import current_facts
from ascend_ops_core.kernels import as_int64
from ascend_ops_core.launch import launch

from ascend_attention.ops.paged_attention.kernels import LOWEST, attend_tile
from ascend_attention.ops.paged_attention.plan import tile_of


@triton.jit
def _at_most(ascending_ptr, count, bound, STEPS: tl.constexpr):
    """How many of ``count`` ascending values are at most ``bound``."""
    low = tl.full((), 0, tl.int32)
    high = tl.full((), 0, tl.int32) + count
    for _ in range(STEPS):
        middle = (low + high) // 2
        value = tl.load(ascending_ptr + middle, mask=low < high, other=0).to(tl.int32)
        smaller = (value <= bound) & (low < high)
        low = tl.where(smaller, middle + 1, low)
        high = tl.where(smaller, high, middle)
    return low


@triton.jit
def rows_of_head(rows_ptr, start, end, head, over_row, over_head, WIDTH: tl.constexpr,
          PADDED: tl.constexpr, ROWS: tl.constexpr):  # fmt: skip
    """One head of the rows from ``start`` on; zeros from ``end`` on."""
    r = tl.arange(0, ROWS)
    d = tl.arange(0, PADDED)
    at = rows_ptr + as_int64(start) * over_row + as_int64(head) * over_head
    inside = (r < end - start)[:, None] & (d < WIDTH)[None, :]
    return tl.load(at + r[:, None] * over_row + d[None, :], mask=inside, other=0.0)


@triton.jit
def _encoder_attention_kernel(
    query_ptr,
    key_ptr,
    value_ptr,
    ends_ptr,
    out_ptr,
    scale,
    tokens,
    sequences,
    query_token,
    query_head,
    key_token,
    key_head_stride,
    value_token,
    value_head_stride,
    programs,
    HEADS: tl.constexpr,
    GROUP: tl.constexpr,
    WIDTH: tl.constexpr,
    PADDED: tl.constexpr,
    TAKEN: tl.constexpr,
    ROWS: tl.constexpr,
    STEPS: tl.constexpr,
):
    q = tl.arange(0, TAKEN)
    r = tl.arange(0, ROWS)
    d = tl.arange(0, PADDED)
    for unit in range(tl.program_id(0), programs, tl.num_programs(0)):
        tile = unit // HEADS
        head = unit - tile * HEADS
        key_head = head // GROUP
        token = tile * TAKEN
        query = rows_of_head(
            query_ptr, token, tokens, head, query_token, query_head, WIDTH, PADDED, TAKEN
        )
        behind = tl.where(token + TAKEN < tokens, token + TAKEN, tokens)
        first = _at_most(ends_ptr + 1, sequences, token, STEPS)
        last = _at_most(ends_ptr, sequences, behind - 1, STEPS)
        peak = tl.full((TAKEN,), LOWEST, tl.float32)
        total = tl.zeros((TAKEN,), tl.float32)
        summed = tl.zeros((TAKEN, PADDED), tl.float32)
        for sequence in range(first, last):
            start = tl.load(ends_ptr + sequence).to(tl.int32)
            end = tl.load(ends_ptr + sequence + 1).to(tl.int32)
            own = (token + q >= start) & (token + q < end)
            for at in range(start, end, ROWS):
                key = rows_of_head(
                    key_ptr, at, end, key_head, key_token, key_head_stride, WIDTH, PADDED, ROWS
                )
                value = rows_of_head(
                    value_ptr, at, end, key_head, value_token, value_head_stride, WIDTH, PADDED,
                    ROWS,
                )  # fmt: skip
                seen = own[:, None] & (r < end - at)[None, :]
                peak, total, summed = attend_tile(
                    query, key, value, seen, scale, peak, total, summed
                )
        result = summed * (1.0 / tl.where(total > 0.0, total, 1.0))[:, None]
        to = out_ptr + (as_int64(token) * HEADS + head) * WIDTH
        mask = (q < tokens - token)[:, None] & (d < WIDTH)[None, :]
        result = result.to(out_ptr.dtype.element_ty)
        tl.store(to + q[:, None] * (HEADS * WIDTH) + d[None, :], result, mask=mask)


def encoder_attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    cu_seqlens: torch.Tensor,
    scale: float,
    ends: Sequence[int],
) -> torch.Tensor:
    """See :func:`ascend_attention.ops.encoder_attention.encoder_attention`."""
    tokens, heads, width = query.shape
    cut = tile_of(current_facts(), width, tokens, query.element_size())
    sequences = cu_seqlens.shape[0] - 1
    programs = -(-tokens // cut.taken) * heads
    out = torch.empty((tokens, heads, width), dtype=query.dtype, device=query.device)
    arguments = {
        "query_ptr": query,
        "key_ptr": key,
        "value_ptr": value,
        "ends_ptr": cu_seqlens.contiguous(),
        "out_ptr": out,
        "scale": float(scale),
        "tokens": tokens,
        "sequences": sequences,
        "query_token": query.stride(0),
        "query_head": query.stride(1),
        "key_token": key.stride(0),
        "key_head_stride": key.stride(1),
        "value_token": value.stride(0),
        "value_head_stride": value.stride(1),
        "programs": programs,
    }
    constants = {
        "HEADS": heads,
        "GROUP": heads // key.shape[1],
        "WIDTH": width,
        "PADDED": cut.padded,
        "TAKEN": cut.taken,
        "ROWS": cut.rows,
        "STEPS": sequences.bit_length(),
    }
    launch(_encoder_attention_kernel, programs, arguments, constants, cube=True)
    return out
