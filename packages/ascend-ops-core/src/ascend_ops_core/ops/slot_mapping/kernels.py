"""The slot mapping in Triton: nothing is looked up per token.

The positions of a request follow each other, so the tokens of one entry of its table have slots
that are computed from one scalar and a range.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from ascend_ops_core.devices import current_facts
from ascend_ops_core.kernels import as_int64
from ascend_ops_core.launch import launch
from ascend_ops_core.tiling import block_of, next_power_of_two

# Slots as int32, the parts they are made of, and float32 quotients.
_LIVE_BYTES = 36


@triton.jit
def _quotient(values, divisor: tl.constexpr):
    """Integer division of small non-negative integers, which NPUs do per element otherwise."""
    return ((values.to(tl.float32) + 0.5) * (1.0 / divisor)).to(tl.int32)


@triton.jit
def _slot_mapping_kernel(
    slots_ptr,
    starts_ptr,
    positions_ptr,
    table_ptr,
    table_stride,
    requests,
    length,
    programs,
    BLOCK_SIZE: tl.constexpr,
    RANKS: tl.constexpr,
    RANK: tl.constexpr,
    INTERLEAVE: tl.constexpr,
    BLOCK: tl.constexpr,
):
    SPAN: tl.constexpr = BLOCK_SIZE * RANKS
    lanes = tl.arange(0, BLOCK)
    for unit in range(tl.program_id(0), programs, tl.num_programs(0)):
        start = tl.load(starts_ptr + unit)
        if unit == requests:
            for first in range(start, length, BLOCK):
                nothing = tl.full((BLOCK,), -1, slots_ptr.dtype.element_ty)
                tl.store(slots_ptr + first + lanes, nothing, mask=lanes < length - first)
        else:
            count = tl.load(starts_ptr + unit + 1) - start
            if count > 0:
                position = tl.load(positions_ptr + start).to(tl.int32)
                table = table_ptr + as_int64(unit) * table_stride
                done = tl.full((), 0, tl.int32)
                while done < count:
                    entry = (position + done) // SPAN
                    offset = position + done - entry * SPAN
                    left = count - done
                    here = tl.where(left < SPAN - offset, left, SPAN - offset)
                    here = tl.where(here < BLOCK, here, BLOCK)
                    base = tl.load(table + entry) * BLOCK_SIZE
                    if RANKS == 1:
                        slot = base + offset + lanes
                    else:
                        x = offset + lanes
                        run = _quotient(x, INTERLEAVE)
                        turn = _quotient(run, RANKS)
                        local = x + (turn - run) * INTERLEAVE
                        mine = run - turn * RANKS == RANK
                        slot = tl.where(mine, base + local, -1)
                    slot = slot.to(slots_ptr.dtype.element_ty)
                    tl.store(slots_ptr + start + done + lanes, slot, mask=lanes < here)
                    done += here


def compute_slot_mapping(
    slots: torch.Tensor,
    query_start_loc: torch.Tensor,
    positions: torch.Tensor,
    block_table: torch.Tensor,
    block_size: int,
    ranks: int,
    rank: int,
    interleave: int,
) -> None:
    """See :func:`ascend_ops_core.ops.slot_mapping.compute_slot_mapping`."""
    requests = query_start_loc.shape[0] - 1
    block = block_of(
        current_facts(),
        streamed=slots.element_size(),
        local=_LIVE_BYTES,
        maximum=next_power_of_two(block_size * ranks),
    )
    arguments = {
        "slots_ptr": slots,
        "starts_ptr": query_start_loc.contiguous(),
        "positions_ptr": positions.contiguous(),
        "table_ptr": block_table,
        "table_stride": block_table.stride(0),
        "requests": requests,
        "length": slots.shape[0],
        "programs": requests + 1,
    }
    constants = {
        "BLOCK_SIZE": block_size,
        "RANKS": ranks,
        "RANK": rank,
        "INTERLEAVE": interleave,
        "BLOCK": block,
    }
    launch(_slot_mapping_kernel, requests + 1, arguments, constants)
