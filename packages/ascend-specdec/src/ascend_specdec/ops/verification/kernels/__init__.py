"""Verification in Triton: a request is one unit of work, and so is a draft where it draws.

Drafts are few and vocabularies long, so loops over a request's drafts read scalars, and loops over
a vocabulary whole tiles. The best value is kept lane by lane with the tile it is from as a float32,
and only the lanes are reduced: A5's compiler takes no reduction to a value and its index.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from ascend_ops_core.devices import current_facts
from ascend_ops_core.kernels import as_int64
from ascend_ops_core.launch import launch
from ascend_ops_core.tiling import block_of, next_power_of_two

from ascend_specdec.ops.verification.kernels.rows import (
    expand_to_drafts,
    finish_row,
    row_arguments,
    start_of,
    verify_greedy,
    write_accepted,
)

__all__ = [
    "accepted_in_block",
    "expand_to_drafts",
    "recovered_tokens",
    "verify_greedy",
    "verify_random",
    "write_accepted",
]

# Probabilities of target and draft, and the noise.
_STREAMED_BYTES = 12
# What is left, its race, the best values with their tiles, and masks.
_LIVE_BYTES = 40

_NO_TOKEN = tl.constexpr(16777216.0)


@triton.jit
def _ratio_of(p_ptr, q_ptr, row, draft, VOCABULARY: tl.constexpr, CERTAIN: tl.constexpr):
    """``p(d)`` and ``q(d)`` without NaN; both are 0 for a draft outside the vocabulary."""
    inside = (draft >= 0) & (draft < VOCABULARY)
    place = as_int64(row) * VOCABULARY + draft
    p = tl.load(p_ptr + place, mask=inside, other=0.0)
    p = tl.where(p == p, p, 0.0)
    if CERTAIN:
        q = tl.where(inside, 1.0, 0.0)
    else:
        q = tl.load(q_ptr + place, mask=inside, other=0.0)
        q = tl.where(q == q, q, 0.0)
    return p, q


@triton.jit
def _verify_random_kernel(
    out_ptr,
    cumulative_ptr,
    drafts_ptr,
    q_ptr,
    p_ptr,
    bonus_ptr,
    recovered_ptr,
    uniform_ptr,
    chosen_ptr,
    programs,
    WIDTH: tl.constexpr,
    VOCABULARY: tl.constexpr,
    CERTAIN: tl.constexpr,
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
                    draft = tl.load(drafts_ptr + start + i).to(tl.int32)
                    p, q = _ratio_of(p_ptr, q_ptr, start + i, draft, VOCABULARY, CERTAIN)
                    u = tl.load(uniform_ptr + start + i)
                    if (q > 0.0) & ((p >= q) | (u * q < p)):
                        tl.store(out_ptr + unit * WIDTH + i, draft)
                        run += 1
            finish_row(out_ptr, bonus_ptr, recovered_ptr, unit, start, count, run, WIDTH)


@triton.jit
def _left_tile(
    p_ptr, q_ptr, row, start, lanes, draft, scale, VOCABULARY: tl.constexpr, CERTAIN: tl.constexpr
):
    """``scale p - q`` of a tile of tokens; NaN where ``p`` is, which no comparison prefers."""
    inside = lanes < VOCABULARY - start
    place = as_int64(row) * VOCABULARY + start + lanes
    left = tl.load(p_ptr + place, mask=inside, other=0.0) * scale
    if CERTAIN:
        away = (draft - start).to(tl.float32)
        left = tl.where(lanes.to(tl.float32) == away, 0.0, left)
    else:
        # A draft outside the vocabulary was drawn from nothing that could be taken away.
        drawn = (draft >= 0) & (draft < VOCABULARY)
        q = tl.load(q_ptr + place, mask=inside & drawn, other=0.0)
        left = left - tl.where(q == q, q, 0.0)
    return left


@triton.jit
def _lowest(chosen, start, lanes):
    """The lowest token of the chosen lanes, each in the tile that begins at ``start``."""
    return tl.min(tl.where(chosen, start + lanes.to(tl.float32), _NO_TOKEN), axis=0)


@triton.jit
def _recovered_kernel(
    out_ptr,
    request_ptr,
    drafts_ptr,
    q_ptr,
    p_ptr,
    noise_ptr,
    scale_ptr,
    programs,
    VOCABULARY: tl.constexpr,
    BLOCK: tl.constexpr,
    CERTAIN: tl.constexpr,
    SCALED: tl.constexpr,
):
    AGAIN: tl.constexpr = BLOCK // 4
    lanes = tl.arange(0, BLOCK)
    few = tl.arange(0, AGAIN)
    for unit in range(tl.program_id(0), programs, tl.num_programs(0)):
        draft = tl.load(drafts_ptr + unit).to(tl.int32)
        request = tl.load(request_ptr + unit)
        scale = tl.full((), 1.0, tl.float32)
        if SCALED:
            scale = tl.load(scale_ptr + unit)
        # Constant zeros would keep a tile of the unified buffer beside what begins with them.
        nothing = draft.to(tl.float32) * 0.0
        best = tl.full((BLOCK,), nothing, tl.float32)
        best_start = tl.full((BLOCK,), nothing, tl.float32)
        for start in range(0, VOCABULARY, BLOCK):
            inside = lanes < VOCABULARY - start
            left = _left_tile(p_ptr, q_ptr, unit, start, lanes, draft, scale, VOCABULARY, CERTAIN)
            noise = tl.load(
                noise_ptr + as_int64(request) * VOCABULARY + start + lanes, mask=inside, other=0.0
            )
            # Noise is positive, so what is not left does not win.
            race = left * noise
            ahead = race > best
            best = tl.where(ahead, race, best)
            best_start = tl.where(ahead, start * 1.0, best_start)
        winner = tl.max(best, axis=0)
        winner_token = _lowest(best == winner, best_start, lanes)
        # Only a row of which nothing is left is read again, for its most likely token; narrow
        # tiles leave the unified buffer to the others.
        again = tl.where(winner > 0.0, 0, VOCABULARY)
        most = tl.zeros((AGAIN,), tl.float32)
        most_start = tl.zeros((AGAIN,), tl.float32)
        for start in range(0, again, AGAIN):
            inside = few < VOCABULARY - start
            place = as_int64(unit) * VOCABULARY + start + few
            p = tl.load(p_ptr + place, mask=inside, other=0.0)
            larger = p > most
            most = tl.where(larger, p, most)
            most_start = tl.where(larger, start * 1.0, most_start)
        peak = tl.max(most, axis=0)
        peak_token = _lowest(most == peak, most_start, few)
        token = tl.where(winner > 0.0, winner_token, peak_token)
        tl.store(out_ptr + unit, token.to(tl.int32))


@triton.jit
def _accepted_in_block_kernel(
    counts_ptr,
    scale_ptr,
    cumulative_ptr,
    drafts_ptr,
    q_ptr,
    p_ptr,
    uniform_ptr,
    programs,
    VOCABULARY: tl.constexpr,
    BLOCK: tl.constexpr,
    CERTAIN: tl.constexpr,
):
    lanes = tl.arange(0, BLOCK)
    for unit in range(tl.program_id(0), programs, tl.num_programs(0)):
        start = start_of(cumulative_ptr, unit)
        count = tl.load(cumulative_ptr + unit).to(tl.int32) - start
        product = tl.full((), 1.0, tl.float32)
        accepted = tl.full((), 0, tl.int32)
        for i in range(0, count):
            tl.store(scale_ptr + start + i, product)
            draft = tl.load(drafts_ptr + start + i).to(tl.int32)
            p, q = _ratio_of(p_ptr, q_ptr, start + i, draft, VOCABULARY, CERTAIN)
            product = product * tl.where(q > 0.0, p / tl.where(q > 0.0, q, 1.0), 0.0)
            product = tl.where(product > 1.0, 1.0, product)
            share = product
            if i + 1 < count:
                following = tl.load(drafts_ptr + start + i + 1).to(tl.int32)
                masses = tl.zeros((BLOCK,), tl.float32)
                for place in range(0, VOCABULARY, BLOCK):
                    left = _left_tile(
                        p_ptr,
                        q_ptr,
                        start + i + 1,
                        place,
                        lanes,
                        following,
                        product,
                        VOCABULARY,
                        CERTAIN,
                    )
                    masses += tl.where(left > 0.0, left, 0.0)
                mass = tl.sum(masses, axis=0)
                divisor = mass + (1.0 - product)
                share = tl.where(divisor > 0.0, mass / tl.where(divisor > 0.0, divisor, 1.0), 0.0)
            u = tl.load(uniform_ptr + start + i)
            accepted = tl.where(u < share, i + 1, accepted)
        tl.store(counts_ptr + unit, accepted)


def verify_random(
    out: torch.Tensor,
    cumulative: torch.Tensor,
    drafts: torch.Tensor,
    draft_probs: torch.Tensor | None,
    target_probs: torch.Tensor,
    bonus: torch.Tensor,
    recovered: torch.Tensor,
    uniform: torch.Tensor,
    chosen: torch.Tensor | None,
) -> None:
    """See :func:`ascend_specdec.ops.verification.verify_random`."""
    arguments = row_arguments(out, cumulative, drafts, bonus, chosen)
    arguments["q_ptr"] = draft_probs
    arguments["p_ptr"] = target_probs
    arguments["recovered_ptr"] = recovered.contiguous()
    arguments["uniform_ptr"] = uniform.contiguous()
    constants = {
        "WIDTH": out.shape[1],
        "VOCABULARY": target_probs.shape[1],
        "CERTAIN": draft_probs is None,
        "CHOSEN": chosen is not None,
    }
    launch(_verify_random_kernel, out.shape[0], arguments, constants)


def _vocabulary_block(vocabulary: int) -> int:
    return block_of(
        current_facts(),
        streamed=_STREAMED_BYTES,
        local=_LIVE_BYTES,
        maximum=next_power_of_two(vocabulary),
    )


def recovered_tokens(
    cumulative: torch.Tensor,
    drafts: torch.Tensor,
    draft_probs: torch.Tensor | None,
    target_probs: torch.Tensor,
    inverse_noise: torch.Tensor,
    scale: torch.Tensor | None,
) -> torch.Tensor:
    """See :func:`ascend_specdec.ops.verification.recovered_tokens`."""
    total, vocabulary = target_probs.shape
    out = torch.empty(total, dtype=torch.int32, device=drafts.device)
    # The request of each draft, by the kernel that spreads any other value of a request.
    request = torch.empty(total, dtype=torch.int32, device=drafts.device)
    requests = torch.arange(cumulative.shape[0], dtype=torch.int32, device=drafts.device)
    expand_to_drafts(request, requests, cumulative, 0, 0)
    arguments = {
        "out_ptr": out,
        "request_ptr": request,
        "drafts_ptr": drafts.contiguous(),
        "q_ptr": draft_probs,
        "p_ptr": target_probs,
        "noise_ptr": inverse_noise.contiguous(),
        "scale_ptr": None if scale is None else scale.contiguous(),
        "programs": total,
    }
    constants = {
        "VOCABULARY": vocabulary,
        "BLOCK": _vocabulary_block(vocabulary),
        "CERTAIN": draft_probs is None,
        "SCALED": scale is not None,
    }
    launch(_recovered_kernel, total, arguments, constants)
    return out


def accepted_in_block(
    cumulative: torch.Tensor,
    drafts: torch.Tensor,
    draft_probs: torch.Tensor | None,
    target_probs: torch.Tensor,
    uniform: torch.Tensor,
    most: int,
) -> tuple[torch.Tensor, torch.Tensor]:
    """See :func:`ascend_specdec.ops.verification.accepted_in_block`."""
    requests, vocabulary = cumulative.shape[0], target_probs.shape[1]
    counts = torch.empty(requests, dtype=torch.int32, device=drafts.device)
    scale = target_probs.new_empty(drafts.shape)
    arguments = {
        "counts_ptr": counts,
        "scale_ptr": scale,
        "cumulative_ptr": cumulative.contiguous(),
        "drafts_ptr": drafts.contiguous(),
        "q_ptr": draft_probs,
        "p_ptr": target_probs,
        "uniform_ptr": uniform.contiguous(),
        "programs": requests,
    }
    constants = {
        "VOCABULARY": vocabulary,
        "BLOCK": _vocabulary_block(vocabulary),
        "CERTAIN": draft_probs is None,
    }
    launch(_accepted_in_block_kernel, requests, arguments, constants)
    return counts, scale
