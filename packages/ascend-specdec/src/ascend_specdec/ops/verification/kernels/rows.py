"""Rows of requests: what is written to them, and what spreads over their drafts.

A request is one unit of work, but for greedy verification of requests that have one draft each: a
tile of them is compared at once.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from ascend_ops_core.devices import current_facts
from ascend_ops_core.kernels import as_int64
from ascend_ops_core.launch import launch
from ascend_ops_core.tiling import block_of, next_power_of_two

# Drafts of one request, padded to a power of two.
_LONGEST = 128

# Requests of one draft each that are verified together: tokens of draft, target and bonus, at most
# int64, their choice, and the row.
_TOKEN_BYTES = 41
# Tokens as int32, what differs and stands, both columns side by side, and masks.
_LIVE_BYTES = 48
_FEWEST = 32


@triton.jit
def start_of(cumulative_ptr, request):
    """Where a request's drafts begin."""
    before = tl.load(cumulative_ptr + request - 1, mask=request > 0, other=0)
    return before.to(tl.int32)


@triton.jit
def _expand_kernel(
    out_ptr,
    values_ptr,
    cumulative_ptr,
    replace_from,
    replace_to,
    programs,
    BLOCK: tl.constexpr,
):
    lanes = tl.arange(0, BLOCK)
    for unit in range(tl.program_id(0), programs, tl.num_programs(0)):
        start = start_of(cumulative_ptr, unit)
        end = tl.load(cumulative_ptr + unit).to(tl.int32)
        value = tl.load(values_ptr + unit)
        value = tl.where(value == replace_from, replace_to, value).to(out_ptr.dtype.element_ty)
        written = tl.zeros((BLOCK,), out_ptr.dtype.element_ty) + value
        for place in range(start, end, BLOCK):
            tl.store(out_ptr + place + lanes, written, mask=lanes < end - place)


@triton.jit
def finish_row(out_ptr, bonus_ptr, replaced_ptr, unit, start, count, run, WIDTH: tl.constexpr):
    """What follows ``run`` accepted drafts."""
    if run < count:
        token = tl.load(replaced_ptr + start + run).to(tl.int32)
    else:
        token = tl.load(bonus_ptr + unit).to(tl.int32)
    tl.store(out_ptr + unit * WIDTH + run, token)


@triton.jit
def _verify_greedy_kernel(
    out_ptr,
    cumulative_ptr,
    drafts_ptr,
    argmax_ptr,
    bonus_ptr,
    chosen_ptr,
    programs,
    WIDTH: tl.constexpr,
    CHOSEN: tl.constexpr,
):
    for unit in range(tl.program_id(0), programs, tl.num_programs(0)):
        verified = 1
        if CHOSEN:
            verified = tl.load(chosen_ptr + unit).to(tl.int32)
        if verified != 0:
            start = start_of(cumulative_ptr, unit)
            count = tl.load(cumulative_ptr + unit).to(tl.int32) - start
            run = tl.full((), 0, tl.int32)
            for i in range(0, count):
                if run == i:
                    # What the target chose stands, whether it was drafted or not.
                    best = tl.load(argmax_ptr + start + i).to(tl.int32)
                    tl.store(out_ptr + unit * WIDTH + i, best)
                    if tl.load(drafts_ptr + start + i).to(tl.int32) == best:
                        run += 1
            if run == count:
                tl.store(out_ptr + unit * WIDTH + run, tl.load(bonus_ptr + unit).to(tl.int32))


@triton.jit
def _verify_one_each_kernel(
    out_ptr,
    drafts_ptr,
    argmax_ptr,
    bonus_ptr,
    chosen_ptr,
    requests,
    programs,
    TAKEN: tl.constexpr,
    CHOSEN: tl.constexpr,
):
    r = tl.arange(0, TAKEN)
    column = tl.arange(0, 2 * TAKEN)
    for unit in range(tl.program_id(0), programs, tl.num_programs(0)):
        first = as_int64(unit) * TAKEN
        real = r < requests - first
        draft = tl.load(drafts_ptr + first + r, mask=real, other=0).to(tl.int32)
        best = tl.load(argmax_ptr + first + r, mask=real, other=0).to(tl.int32)
        bonus = tl.load(bonus_ptr + first + r, mask=real, other=0).to(tl.int32)
        verified = tl.full((TAKEN,), 1.0, tl.float32)
        if CHOSEN:
            verified = tl.load(chosen_ptr + first + r, mask=real, other=0).to(tl.float32)
        # Comparisons of int32 are scalar on A2, those of float32 are not.
        stands = tl.where((draft ^ best).to(tl.float32) == 0.0, verified, 0.0)
        token = tl.reshape(tl.join(best, bonus), (2 * TAKEN,))
        chosen = tl.reshape(tl.join(verified, stands), (2 * TAKEN,))
        to = out_ptr + 2 * first + column
        inside = column < 2 * (requests - first)
        kept = tl.load(to, mask=inside, other=0)
        tl.store(to, tl.where(chosen > 0.0, token, kept), mask=inside)


@triton.jit
def _write_accepted_kernel(
    out_ptr,
    cumulative_ptr,
    drafts_ptr,
    counts_ptr,
    recovered_ptr,
    bonus_ptr,
    chosen_ptr,
    programs,
    WIDTH: tl.constexpr,
    BLOCK: tl.constexpr,
    CHOSEN: tl.constexpr,
):
    lanes = tl.arange(0, BLOCK)
    for unit in range(tl.program_id(0), programs, tl.num_programs(0)):
        verified = 1
        if CHOSEN:
            verified = tl.load(chosen_ptr + unit).to(tl.int32)
        if verified != 0:
            start = start_of(cumulative_ptr, unit)
            count = tl.load(cumulative_ptr + unit).to(tl.int32) - start
            run = tl.load(counts_ptr + unit)
            kept = lanes < run
            draft = tl.load(drafts_ptr + start + lanes, mask=kept, other=0).to(tl.int32)
            tl.store(out_ptr + unit * WIDTH + lanes, draft, mask=kept)
            finish_row(out_ptr, bonus_ptr, recovered_ptr, unit, start, count, run, WIDTH)


def expand_to_drafts(
    out: torch.Tensor,
    values: torch.Tensor,
    cumulative: torch.Tensor,
    replace_from: float,
    replace_to: float,
) -> None:
    """See :func:`ascend_specdec.ops.verification.expand_to_drafts`."""
    whole = not values.is_floating_point()
    arguments = {
        "out_ptr": out,
        "values_ptr": values.contiguous(),
        "cumulative_ptr": cumulative.contiguous(),
        "replace_from": int(replace_from) if whole else replace_from,
        "replace_to": int(replace_to) if whole else replace_to,
        "programs": values.shape[0],
    }
    block = min(next_power_of_two(out.shape[0]), _LONGEST)
    launch(_expand_kernel, values.shape[0], arguments, {"BLOCK": block})


def row_arguments(
    out: torch.Tensor,
    cumulative: torch.Tensor,
    drafts: torch.Tensor,
    bonus: torch.Tensor,
    chosen: torch.Tensor | None,
) -> dict[str, Any]:
    return {
        "out_ptr": out,
        "cumulative_ptr": cumulative.contiguous(),
        "drafts_ptr": drafts.contiguous(),
        "bonus_ptr": bonus.contiguous(),
        "chosen_ptr": None if chosen is None else chosen.contiguous(),
        "programs": out.shape[0],
    }


def verify_greedy(
    out: torch.Tensor,
    cumulative: torch.Tensor,
    drafts: torch.Tensor,
    argmax: torch.Tensor,
    bonus: torch.Tensor,
    chosen: torch.Tensor | None,
) -> None:
    """See :func:`ascend_specdec.ops.verification.verify_greedy`."""
    arguments = row_arguments(out, cumulative, drafts, bonus, chosen)
    arguments["argmax_ptr"] = argmax.contiguous()
    requests, width = out.shape
    # No request has more drafts than its row holds, so each has one.
    if width == 2 and drafts.shape[0] == requests:
        taken = block_of(
            current_facts(),
            streamed=_TOKEN_BYTES,
            local=_LIVE_BYTES,
            maximum=max(next_power_of_two(requests), _FEWEST),
        )
        programs = -(-requests // taken)
        del arguments["cumulative_ptr"]
        arguments |= {"requests": requests, "programs": programs}
        constants = {"TAKEN": taken, "CHOSEN": chosen is not None}
        launch(_verify_one_each_kernel, programs, arguments, constants)
        return
    constants = {"WIDTH": width, "CHOSEN": chosen is not None}
    launch(_verify_greedy_kernel, requests, arguments, constants)


def write_accepted(
    out: torch.Tensor,
    cumulative: torch.Tensor,
    drafts: torch.Tensor,
    counts: torch.Tensor,
    recovered: torch.Tensor,
    bonus: torch.Tensor,
    chosen: torch.Tensor | None,
) -> None:
    """See :func:`ascend_specdec.ops.verification.reference.write_accepted`."""
    arguments = row_arguments(out, cumulative, drafts, bonus, chosen)
    arguments["counts_ptr"] = counts.contiguous()
    arguments["recovered_ptr"] = recovered.contiguous()
    width = out.shape[1]
    constants = {
        "WIDTH": width,
        "BLOCK": next_power_of_two(width),
        "CHOSEN": chosen is not None,
    }
    launch(_write_accepted_kernel, out.shape[0], arguments, constants)
