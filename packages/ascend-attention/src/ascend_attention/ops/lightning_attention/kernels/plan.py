"""What the kernels over chunks share: where the chunks lie, and how far tokens decay."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from ascend_ops_core.kernels import as_int64
from ascend_ops_core.launch import launch

from ascend_attention.ops.causal_conv.kernels import owner_of_chunk

CHUNK = 64
"""Tokens of a chunk, counted from the first token of a request in the step."""


@triton.jit
def _table_kernel(
    start_ptr,
    slots_ptr,
    table_ptr,
    tokens,
    requests,
    programs,
    CHUNK: tl.constexpr,
    STATEFUL: tl.constexpr,
):
    for unit in range(tl.program_id(0), programs, tl.num_programs(0)):
        at = tl.full((), 0, tl.int32) + unit
        r = owner_of_chunk(start_ptr, at, requests, CHUNK)
        begin = tl.load(start_ptr + r).to(tl.int32)
        # Request ``requests`` is padding.
        real = r < requests
        end = tl.load(start_ptr + tl.where(real, r + 1, r)).to(tl.int32)
        end = tl.where(real, end, tokens)
        first = begin + (at - begin // CHUNK - r) * CHUNK
        count = end - first
        count = tl.where(count > CHUNK, CHUNK, count)
        count = tl.where(count > 0, count, 0)
        slot = tl.where(real, 1, 0)
        if STATEFUL:
            slot = tl.load(slots_ptr + tl.where(real, r, 0)).to(tl.int32) * slot
        count = tl.where(slot > 0, count, count * -1)
        tl.store(table_ptr + at, as_int64(first) * (4 * CHUNK) + count + CHUNK)


@triton.jit
def chunk_at(table_ptr, place, CHUNK: tl.constexpr):
    """First token and number of tokens of the chunk in a place of :func:`chunk_table`."""
    word = tl.load(table_ptr + place)
    first = word // (4 * CHUNK)
    return first, (word - first * (4 * CHUNK)).to(tl.int32) - CHUNK


@triton.jit
def _decays_kernel(slopes_ptr, decays_ptr, programs, CHUNK: tl.constexpr):
    distance = tl.abs((tl.arange(0, 2 * CHUNK) - (CHUNK - 1)).to(tl.float32))
    for head in range(tl.program_id(0), programs, tl.num_programs(0)):
        slope = tl.load(slopes_ptr + head)
        at = decays_ptr + head * (2 * CHUNK) + tl.arange(0, 2 * CHUNK)
        tl.store(at, tl.exp(distance * slope * -1.0))


def chunk_table(start: torch.Tensor, slots: torch.Tensor | None, tokens: int) -> torch.Tensor:
    """Say where the chunks of a ragged batch begin and end.

    Args:
        start: ``[R + 1]``, where the tokens of each request begin; contiguous.
        slots: ``[R]``, contiguous, or None where all requests are real.
        tokens: ``T``.

    Returns:
        ``[T // CHUNK + R + 1]`` int64, first token and number of tokens of every place, in one word
        so that a core reads one; chunk ``c`` of request ``r`` has place
        ``start[r] // CHUNK + r + c``. The number is negative where tokens are padding or of a
        request without a slot, and 0 where no chunk is.
    """
    requests = start.shape[0] - 1
    places = tokens // CHUNK + requests + 1
    table = torch.empty(places, dtype=torch.int64, device=start.device)
    arguments = {
        "start_ptr": start,
        "slots_ptr": slots,
        "table_ptr": table,
        "tokens": tokens,
        "requests": requests,
        "programs": places,
    }
    launch(_table_kernel, places, arguments, {"CHUNK": CHUNK, "STATEFUL": slots is not None})
    return table


def decays_of(slopes: torch.Tensor) -> torch.Tensor:
    """``exp(-slope * |j - (CHUNK - 1)|)`` for ``j`` from 0 to ``2 * CHUNK - 1``.

    So rows of any length within a chunk stand in it in order, falling and rising.

    Args:
        slopes: ``[H]`` float32.

    Returns:
        ``[H, 2 * CHUNK]`` float32.
    """
    heads = slopes.shape[0]
    decays = torch.empty((heads, 2 * CHUNK), dtype=torch.float32, device=slopes.device)
    arguments = {"slopes_ptr": slopes, "decays_ptr": decays, "programs": heads}
    launch(_decays_kernel, heads, arguments, {"CHUNK": CHUNK})
    return decays
