"""The choice among candidates in Triton: a place is one unit of work, a walk is another.

Rows of the code books lie anywhere, so each is loaded as a whole by its token, and a score is the
sum over one product of rows. A walk keeps its scores in float32 lanes and reduces these alone: A5's
compiler takes no reduction to a value and its index.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from ascend_ops_core.kernels import as_int64
from ascend_ops_core.launch import launch
from ascend_ops_core.tiling import next_power_of_two


@triton.jit
def _row_of(book_ptr, token, lanes, RANK: tl.constexpr):
    row = tl.load(book_ptr + as_int64(token) * RANK + lanes, mask=lanes < RANK, other=0.0)
    return row.to(tl.float32)


@triton.jit
def _selector_edges_kernel(
    out_ptr,
    unary_ptr,
    candidates_ptr,
    anchors_ptr,
    predecessors_ptr,
    successors_ptr,
    gates_ptr,
    places,
    programs,
    WIDTH: tl.constexpr,
    RANK: tl.constexpr,
    LANES: tl.constexpr,
    BLOCK: tl.constexpr,
):
    lanes = tl.arange(0, LANES)
    rank = tl.arange(0, BLOCK)
    for unit in range(tl.program_id(0), programs, tl.num_programs(0)):
        request = unit // places
        place = unit - request * places
        gate = _row_of(gates_ptr, unit, rank, RANK)
        first = as_int64(unit) * WIDTH
        unary = tl.load(unary_ptr + first + lanes, mask=lanes < WIDTH, other=0.0)
        for p in range(0, WIDTH):
            if place == 0:
                before = tl.load(anchors_ptr + request).to(tl.int32)
            else:
                before = tl.load(candidates_ptr + first - WIDTH + p).to(tl.int32)
            source = _row_of(predecessors_ptr, before, rank, RANK) * gate
            scores = unary
            for c in range(0, WIDTH):
                token = tl.load(candidates_ptr + first + c).to(tl.int32)
                score = tl.sum(source * _row_of(successors_ptr, token, rank, RANK), axis=0)
                # Comparisons of int32 are scalar on A2, those of float32 are not.
                here = tl.abs(lanes.to(tl.float32) - (tl.full((), 0.0, tl.float32) + c)) < 0.5
                scores += tl.where(here, score, 0.0)
            tl.store(out_ptr + (first + p) * WIDTH + lanes, scores, mask=lanes < WIDTH)


@triton.jit
def _selector_walk_kernel(
    out_ptr,
    edges_ptr,
    candidates_ptr,
    places,
    programs,
    WIDTH: tl.constexpr,
    LANES: tl.constexpr,
):
    lanes = tl.arange(0, LANES)
    order = lanes.to(tl.float32)
    for unit in range(tl.program_id(0), programs, tl.num_programs(0)):
        at = tl.full((), 0, tl.int32)
        for place in range(0, places):
            spot = as_int64(unit) * places + place
            row = tl.load(
                edges_ptr + (spot * WIDTH + at) * WIDTH + lanes,
                mask=lanes < WIDTH,
                other=float("-inf"),
            )
            row = tl.where(row == row, row, float("-inf"))
            best = tl.max(row, axis=0)
            at = tl.min(tl.where(row == best, order, LANES * 1.0), axis=0).to(tl.int32)
            token = tl.load(candidates_ptr + spot * WIDTH + at).to(tl.int32)
            tl.store(out_ptr + spot, token)


def selector_edges(
    unary: torch.Tensor,
    candidates: torch.Tensor,
    anchors: torch.Tensor,
    predecessors: torch.Tensor,
    successors: torch.Tensor,
    gates: torch.Tensor,
) -> torch.Tensor:
    """See :func:`ascend_specdec.ops.candidate_selection.selector_edges`."""
    batch, places, width = unary.shape
    rank = predecessors.shape[1]
    out = torch.empty((batch, places, width, width), dtype=unary.dtype, device=unary.device)
    arguments = {
        "out_ptr": out,
        "unary_ptr": unary.contiguous(),
        "candidates_ptr": candidates.contiguous(),
        "anchors_ptr": anchors.contiguous(),
        "predecessors_ptr": predecessors.contiguous(),
        "successors_ptr": successors.contiguous(),
        "gates_ptr": gates.contiguous(),
        "places": places,
        "programs": batch * places,
    }
    constants = {
        "WIDTH": width,
        "RANK": rank,
        "LANES": next_power_of_two(width),
        "BLOCK": next_power_of_two(rank),
    }
    launch(_selector_edges_kernel, batch * places, arguments, constants)
    return out


def selector_walk(edges: torch.Tensor, candidates: torch.Tensor) -> torch.Tensor:
    """See :func:`ascend_specdec.ops.candidate_selection.selector_walk`."""
    batch, places, width = candidates.shape
    out = torch.empty((batch, places), dtype=torch.int32, device=candidates.device)
    arguments = {
        "out_ptr": out,
        "edges_ptr": edges,
        "candidates_ptr": candidates.contiguous(),
        "places": places,
        "programs": batch,
    }
    constants = {"WIDTH": width, "LANES": next_power_of_two(width)}
    launch(_selector_walk_kernel, batch, arguments, constants)
    return out
