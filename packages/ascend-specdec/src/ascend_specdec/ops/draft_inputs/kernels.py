"""What a draft model is given, in Triton.

Lists of requests are read whole; where a request has a row of its own, it is one unit of work.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from ascend_ops_core.kernels import as_int64
from ascend_ops_core.launch import launch
from ascend_ops_core.tiling import next_power_of_two

# Requests that one program handles; a batch is a few hundred at most.
_REQUESTS = 256


@triton.jit
def _prepare_inputs_kernel(
    indices_ptr,
    rejected_ptr,
    cumulative_ptr,
    valid_ptr,
    starts_ptr,
    requests,
    programs,
    BLOCK: tl.constexpr,
):
    lanes = tl.arange(0, BLOCK)
    for unit in range(tl.program_id(0), programs, tl.num_programs(0)):
        first = unit * BLOCK
        inside = lanes < requests - first
        ends = tl.load(cumulative_ptr + first + lanes, mask=inside, other=0).to(tl.int32)
        earlier = inside & (lanes >= 1 - first)
        before = tl.load(cumulative_ptr + first + lanes - 1, mask=earlier, other=0).to(tl.int32)
        valid = tl.load(valid_ptr + first + lanes, mask=inside, other=0).to(tl.int32)
        following = tl.load(starts_ptr + first + lanes + 1, mask=inside, other=0).to(tl.int32)
        drafts = ends - before
        # Comparisons of int32 are scalar on A2, those of float32 are not.
        rejected = tl.where(drafts.to(tl.float32) == 0.0, 0, drafts + 1 - valid)
        index = following - 1 - rejected
        kind = indices_ptr.dtype.element_ty
        tl.store(indices_ptr + first + lanes, index.to(kind), mask=inside)
        kind = rejected_ptr.dtype.element_ty
        tl.store(rejected_ptr + first + lanes, rejected.to(kind), mask=inside)


@triton.jit
def _next_tokens_kernel(
    next_ptr,
    counts_ptr,
    sampled_ptr,
    discarded_ptr,
    backup_ptr,
    vocabulary,
    programs,
    WIDTH: tl.constexpr,
    BLOCK: tl.constexpr,
):
    lanes = tl.arange(0, BLOCK)
    for unit in range(tl.program_id(0), programs, tl.num_programs(0)):
        row = sampled_ptr + unit * WIDTH
        token = tl.load(row + lanes, mask=lanes < WIDTH, other=-1).to(tl.float32)
        counted = (token >= 0.0) & (token < vocabulary.to(tl.float32))
        place = tl.where(counted, lanes.to(tl.float32) + 1.0, 0.0)
        last = tl.max(place, axis=0).to(tl.int32)
        count = tl.sum(tl.where(counted, 1.0, 0.0), axis=0).to(tl.int32)
        if tl.load(discarded_ptr + unit).to(tl.int32) != 0:
            last = 0
            count = 0
        chosen = tl.load(backup_ptr + unit).to(tl.int32)
        if last > 0:
            chosen = tl.load(row + last - 1).to(tl.int32)
        tl.store(next_ptr + unit, chosen.to(next_ptr.dtype.element_ty))
        tl.store(counts_ptr + unit, count.to(counts_ptr.dtype.element_ty))


@triton.jit
def _next_positions_kernel(
    positions_out_ptr,
    slots_ptr,
    seq_lens_ptr,
    positions_ptr,
    table_ptr,
    table_stride,
    columns,
    limit,
    requests,
    length,
    programs,
    BLOCK_SIZE: tl.constexpr,
    BLOCK: tl.constexpr,
):
    lanes = tl.arange(0, BLOCK)
    for unit in range(tl.program_id(0), programs, tl.num_programs(0)):
        if unit == requests:
            for first in range(requests, length, BLOCK):
                nothing = tl.full((BLOCK,), -1, slots_ptr.dtype.element_ty)
                tl.store(slots_ptr + first + lanes, nothing, mask=lanes < length - first)
        else:
            position = tl.load(positions_ptr + unit).to(tl.int32) + 1
            seen = tl.load(seq_lens_ptr + unit).to(tl.int32) + 1
            full = position >= limit
            position = tl.where(full, 0, position)
            seen = tl.where(full, 1, tl.where(seen < limit, seen, limit))
            column = position // BLOCK_SIZE
            column = tl.where(column < columns, column, columns - 1)
            block = tl.load(table_ptr + as_int64(unit) * table_stride + column)
            offset = position - position // BLOCK_SIZE * BLOCK_SIZE
            slot = as_int64(block) * BLOCK_SIZE + offset
            slot = tl.where(full, -1, slot)
            tl.store(slots_ptr + unit, slot.to(slots_ptr.dtype.element_ty))
            tl.store(seq_lens_ptr + unit, seen.to(seq_lens_ptr.dtype.element_ty))
            kind = positions_out_ptr.dtype.element_ty
            tl.store(positions_out_ptr + unit, position.to(kind))


def prepare_inputs_padded(
    out_indices: torch.Tensor,
    out_rejected: torch.Tensor,
    cumulative: torch.Tensor,
    valid_counts: torch.Tensor,
    query_start_loc: torch.Tensor,
) -> None:
    """See :func:`ascend_specdec.ops.draft_inputs.prepare_inputs_padded`."""
    requests = cumulative.shape[0]
    block = min(next_power_of_two(requests), _REQUESTS)
    programs = -(-requests // block)
    arguments = {
        "indices_ptr": out_indices,
        "rejected_ptr": out_rejected,
        "cumulative_ptr": cumulative.contiguous(),
        "valid_ptr": valid_counts.contiguous(),
        "starts_ptr": query_start_loc.contiguous(),
        "requests": requests,
        "programs": programs,
    }
    launch(_prepare_inputs_kernel, programs, arguments, {"BLOCK": block})


def next_tokens_padded(
    out_next: torch.Tensor,
    out_counts: torch.Tensor,
    sampled: torch.Tensor,
    discarded: torch.Tensor,
    backup: torch.Tensor,
    vocabulary: int,
) -> None:
    """See :func:`ascend_specdec.ops.draft_inputs.next_tokens_padded`."""
    requests, width = sampled.shape
    arguments = {
        "next_ptr": out_next,
        "counts_ptr": out_counts,
        "sampled_ptr": sampled.contiguous(),
        "discarded_ptr": discarded.contiguous(),
        "backup_ptr": backup.contiguous(),
        "vocabulary": vocabulary,
        "programs": requests,
    }
    constants = {"WIDTH": width, "BLOCK": next_power_of_two(width)}
    launch(_next_tokens_kernel, requests, arguments, constants)


def next_positions(
    out_positions: torch.Tensor,
    out_slots: torch.Tensor,
    seq_lens: torch.Tensor,
    positions: torch.Tensor,
    block_table: torch.Tensor,
    block_size: int,
    limit: int,
) -> None:
    """See :func:`ascend_specdec.ops.draft_inputs.next_positions`."""
    requests = positions.shape[0]
    arguments = {
        "positions_out_ptr": out_positions,
        "slots_ptr": out_slots,
        "seq_lens_ptr": seq_lens,
        "positions_ptr": positions,
        "table_ptr": block_table,
        "table_stride": block_table.stride(0),
        "columns": block_table.shape[1],
        "limit": limit,
        "requests": requests,
        "length": out_slots.shape[0],
        "programs": requests + 1,
    }
    constants = {"BLOCK_SIZE": block_size, "BLOCK": _REQUESTS}
    launch(_next_positions_kernel, requests + 1, arguments, constants)
