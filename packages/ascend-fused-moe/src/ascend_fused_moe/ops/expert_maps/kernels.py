"""The mapping to physical experts in Triton: two scalars and one atomic transfer for each choice.

An NPU gathers no vector of addresses, it handles each element with scalar accesses; here the loop
is explicit, and the places of a token are put together in a register and stored at once.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from ascend_ops_core.launch import launch
from ascend_ops_core.tiling import next_power_of_two

_TOKENS = 16
"""Tokens of a unit of work: enough to make its start cheap, few enough to spread a decode step."""

_LEAST_CHOICES = 8


@triton.jit
def _record(load_ptr, place, counted):
    """Add 1 to the counter of a place."""
    lanes = tl.arange(0, 8)  # the smallest vector; a scalar would be put together
    if (place >= 0) & counted:
        tl.atomic_add(load_ptr + place + lanes, tl.where(lanes < 1, 1, 0), mask=lanes < 1)


@triton.jit
def _map_to_physical_and_record_kernel(
    ids_ptr,
    table_ptr,
    load_ptr,
    unpadded_ptr,
    out_ptr,
    rows,
    experts,
    period,
    offset,
    row_stride,
    programs,
    TOP_K: tl.constexpr,
    CHOICES: tl.constexpr,
    TOKENS: tl.constexpr,
    RECORDED: tl.constexpr,
    PADDED: tl.constexpr,
):
    choice = tl.arange(0, CHOICES)
    counted = rows
    if PADDED:
        counted = tl.load(unpadded_ptr).to(tl.int32)
    for unit in range(tl.program_id(0), programs, tl.num_programs(0)):
        for t in range(0, TOKENS):
            token = unit * TOKENS + t
            if token < rows:
                phase = (token + offset) % period
                ids = ids_ptr + token * row_stride
                places = tl.full((CHOICES,), -1, tl.int32)
                for j in range(0, TOP_K):
                    logical = tl.load(ids + j).to(tl.int32)
                    if (logical >= 0) & (logical < experts):
                        place = tl.load(table_ptr + logical * period + phase)
                        places = tl.where(choice == j, place, places)
                        if RECORDED:
                            _record(load_ptr, place, token < counted)
                out = out_ptr + token * TOP_K + choice
                tl.store(out, places.to(out_ptr.dtype.element_ty), mask=choice < TOP_K)


def map_to_physical_and_record(
    ids: torch.Tensor,
    table: torch.Tensor,
    load: torch.Tensor | None,
    num_unpadded_tokens: torch.Tensor | None,
    offset: int,
) -> torch.Tensor:
    """See :func:`ascend_fused_moe.ops.expert_maps.map_to_physical_and_record`."""
    if ids.stride(-1) != 1:
        ids = ids.contiguous()
    rows, top_k = ids.shape
    experts, period = table.shape
    out = torch.empty((rows, top_k), dtype=ids.dtype, device=ids.device)
    tokens = min(_TOKENS, next_power_of_two(rows))
    programs = -(-rows // tokens) if top_k else 0
    arguments = {
        "ids_ptr": ids,
        "table_ptr": table.contiguous(),
        "load_ptr": out if load is None else load,
        "unpadded_ptr": out if num_unpadded_tokens is None else num_unpadded_tokens,
        "out_ptr": out,
        "rows": rows,
        "experts": experts,
        "period": period,
        "offset": offset % period,
        "row_stride": ids.stride(0),
        "programs": programs,
    }
    constants = {
        "TOP_K": top_k,
        "CHOICES": max(next_power_of_two(top_k), _LEAST_CHOICES),
        "TOKENS": tokens,
        "RECORDED": load is not None,
        "PADDED": num_unpadded_tokens is not None,
    }
    launch(_map_to_physical_and_record_kernel, programs, arguments, constants)
    return out
