"""Clearing and copying states in Triton: parts of a state, moved as integers."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from ascend_ops_core.devices import current_facts
from ascend_ops_core.kernels import as_int64
from ascend_ops_core.launch import launch
from ascend_ops_core.tiling import block_of, next_power_of_two

_BLOCK_BYTES = 32768
"""Moved at once, at most: enough for a transfer's speed, and little is moved in vain."""

_BITS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


@triton.jit
def _clear_kernel(
    states_ptr,
    slots_ptr,
    cleared_ptr,
    stride,
    size,
    parts,
    programs,
    BLOCK: tl.constexpr,
    GIVEN: tl.constexpr,
):
    lanes = tl.arange(0, BLOCK)
    zeros = tl.zeros((BLOCK,), states_ptr.dtype.element_ty)
    for unit in range(tl.program_id(0), programs, tl.num_programs(0)):
        n = unit // parts
        slot = tl.load(slots_ptr + n).to(tl.int32)
        if GIVEN:
            slot = tl.where(tl.load(cleared_ptr + n) > 0, slot, 0)
        if slot > 0:
            start = (unit - n * parts) * BLOCK
            to = states_ptr + as_int64(slot) * stride + start
            tl.store(to + lanes, zeros, mask=lanes < size - start)


@triton.jit
def _copy_kernel(
    states_ptr,
    table_ptr,
    source_ptr,
    destination_ptr,
    shift_ptr,
    table_stride,
    stride,
    size,
    row,
    parts,
    programs,
    BLOCK: tl.constexpr,
    SHIFTED: tl.constexpr,
):
    lanes = tl.arange(0, BLOCK)
    for unit in range(tl.program_id(0), programs, tl.num_programs(0)):
        r = unit // parts
        source = tl.load(source_ptr + r).to(tl.int32)
        destination = tl.load(destination_ptr + r).to(tl.int32)
        if (source >= 0) & (destination >= 0) & (source != destination):
            table = table_ptr + as_int64(r) * table_stride
            start = tl.load(table + source)
            to = tl.load(table + destination)
            skipped = 0
            if SHIFTED:
                skipped = tl.load(shift_ptr + r).to(tl.int32) * row
            done = (unit - r * parts) * BLOCK
            if (start > 0) & (to > 0) & (done < size - skipped):
                inside = lanes < size - skipped - done
                start_ptr = states_ptr + as_int64(start) * stride + skipped + done
                data = tl.load(start_ptr + lanes, mask=inside)
                tl.store(states_ptr + as_int64(to) * stride + done + lanes, data, mask=inside)


def clear_states(states: torch.Tensor, slots: torch.Tensor, cleared: torch.Tensor | None) -> None:
    """See :func:`ascend_attention.ops.linear_states.clear_states`."""
    size, block, parts = _parts(states)
    programs = slots.shape[0] * parts
    if not programs:
        return
    arguments = {
        "states_ptr": _bits(states),
        "slots_ptr": slots.contiguous(),
        "cleared_ptr": None if cleared is None else cleared.contiguous().view(torch.uint8),
        "stride": states.stride(0),
        "size": size,
        "parts": parts,
        "programs": programs,
    }
    launch(_clear_kernel, programs, arguments, {"BLOCK": block, "GIVEN": cleared is not None})


def copy_states(
    states: torch.Tensor,
    block_table: torch.Tensor,
    source: torch.Tensor,
    destination: torch.Tensor,
    shift: torch.Tensor | None,
) -> None:
    """See :func:`ascend_attention.ops.linear_states.copy_states`."""
    size, block, parts = _parts(states)
    programs = block_table.shape[0] * parts
    if not programs:
        return
    arguments = {
        "states_ptr": _bits(states),
        "table_ptr": block_table,
        "source_ptr": source.contiguous(),
        "destination_ptr": destination.contiguous(),
        "shift_ptr": None if shift is None else shift.contiguous(),
        "table_stride": block_table.stride(0),
        "stride": states.stride(0),
        "size": size,
        "row": 0 if shift is None else size // states.shape[1],
        "parts": parts,
        "programs": programs,
    }
    launch(_copy_kernel, programs, arguments, {"BLOCK": block, "SHIFTED": shift is not None})


def _bits(states: torch.Tensor) -> torch.Tensor:
    return states.view(_BITS[states.element_size()])


def _parts(states: torch.Tensor) -> tuple[int, int, int]:
    """Values of a state, values moved at once, and how often."""
    size = states[0].numel() if states.shape[0] else 0
    width = states.element_size()
    block = block_of(
        current_facts(),
        streamed=2 * width,
        maximum=min(_BLOCK_BYTES // width, next_power_of_two(size)),
    )
    return size, block, -(-size // block)
