"""A block's rows in Triton: nothing is looked up per row.

The positions of a request follow each other, those of its context and those of its block, so rows
of one block of the cache have slots that are computed from one scalar and a range. Every row is
stored once.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from ascend_ops_core.devices import current_facts
from ascend_ops_core.kernels import as_int64
from ascend_ops_core.launch import launch
from ascend_ops_core.tiling import block_of, next_power_of_two

# Slots as int32 and int64, and the range they come from.
_LIVE_BYTES = 20


@triton.jit
def _store_slots(
    slots_ptr, first, count, total, position, table, lanes, BLOCK_SIZE: tl.constexpr,
    BLOCK: tl.constexpr,
):  # fmt: skip
    """Slots of ``count`` rows from ``position`` on, and -1 for the others of ``total`` rows."""
    done = tl.full((), 0, tl.int32)
    while done < count:
        entry = (position + done) // BLOCK_SIZE
        offset = position + done - entry * BLOCK_SIZE
        left = count - done
        here = tl.where(left < BLOCK_SIZE - offset, left, BLOCK_SIZE - offset)
        here = tl.where(here < BLOCK, here, BLOCK)
        base = tl.load(table + entry) * BLOCK_SIZE + offset
        slot = (base + lanes).to(slots_ptr.dtype.element_ty)
        tl.store(slots_ptr + first + done + lanes, slot, mask=lanes < here)
        done += here
    while done < total:
        nothing = tl.full((BLOCK,), -1, slots_ptr.dtype.element_ty)
        tl.store(slots_ptr + first + done + lanes, nothing, mask=lanes < total - done)
        done += BLOCK


@triton.jit
def _between(value, least, most):
    value = tl.where(value < least, least, value)
    return tl.where(value < most, value, most)


@triton.jit
def _expand_blocks_kernel(
    tokens_ptr,
    positions_ptr,
    slots_ptr,
    context_ptr,
    next_ptr,
    starts_ptr,
    lens_ptr,
    rejected_ptr,
    table_ptr,
    table_stride,
    mask_token,
    limit,
    requests,
    length,
    programs,
    QUERIES: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    REJECTED: tl.constexpr,
    QUERY_BLOCK: tl.constexpr,
    BLOCK: tl.constexpr,
):
    lanes = tl.arange(0, BLOCK)
    query = tl.arange(0, QUERY_BLOCK)
    for unit in range(tl.program_id(0), programs, tl.num_programs(0)):
        start = tl.load(starts_ptr + unit)
        if unit == requests:
            for first in range(start, length, BLOCK):
                nothing = tl.full((BLOCK,), -1, context_ptr.dtype.element_ty)
                tl.store(context_ptr + first + lanes, nothing, mask=lanes < length - first)
        else:
            count = tl.load(starts_ptr + unit + 1) - start
            end = tl.load(lens_ptr + unit).to(tl.int32)
            position = end - count
            if REJECTED:
                end -= tl.load(rejected_ptr + unit).to(tl.int32)
            table = table_ptr + as_int64(unit) * table_stride
            kept = _between(end, position, limit) - position
            kept = tl.where(kept > 0, kept, 0)
            _store_slots(context_ptr, start, kept, count, position, table, lanes, BLOCK_SIZE, BLOCK)

            first = unit * QUERIES
            # Comparisons of int32 are scalar on A2, those of float32 are not.
            anchor = query.to(tl.float32) < 0.5
            token = tl.where(anchor, tl.load(next_ptr + unit).to(tl.int32), mask_token)
            place = tl.minimum(query + end, limit - 1).to(positions_ptr.dtype.element_ty)
            tl.store(tokens_ptr + first + query, token, mask=query < QUERIES)
            tl.store(positions_ptr + first + query, place, mask=query < QUERIES)
            held = _between(limit - end, 0, QUERIES)
            _store_slots(slots_ptr, first, held, QUERIES, end, table, lanes, BLOCK_SIZE, BLOCK)


def expand_blocks(
    tokens: torch.Tensor,
    positions: torch.Tensor,
    slots: torch.Tensor,
    context_slots: torch.Tensor,
    next_tokens: torch.Tensor,
    query_start: torch.Tensor,
    seq_lens: torch.Tensor,
    rejected: torch.Tensor | None,
    block_table: torch.Tensor,
    mask_token: int,
    block_size: int,
    limit: int,
) -> None:
    """See :func:`ascend_specdec.ops.block_inputs.expand_blocks`."""
    requests = next_tokens.shape[0]
    queries = tokens.shape[0] // requests
    arguments = {
        "tokens_ptr": tokens,
        "positions_ptr": positions,
        "slots_ptr": slots,
        "context_ptr": context_slots,
        "next_ptr": next_tokens.contiguous(),
        "starts_ptr": query_start.contiguous(),
        "lens_ptr": seq_lens.contiguous(),
        "rejected_ptr": None if rejected is None else rejected.contiguous(),
        "table_ptr": block_table,
        "table_stride": block_table.stride(0),
        "mask_token": mask_token,
        "limit": limit,
        "requests": requests,
        "length": context_slots.shape[0],
        "programs": requests + 1,
    }
    constants = {
        "QUERIES": queries,
        "BLOCK_SIZE": block_size,
        "REJECTED": rejected is not None,
        "QUERY_BLOCK": next_power_of_two(queries),
        "BLOCK": block_of(
            current_facts(),
            streamed=context_slots.element_size(),
            local=_LIVE_BYTES,
            maximum=next_power_of_two(block_size),
        ),
    }
    launch(_expand_blocks_kernel, requests + 1, arguments, constants)
