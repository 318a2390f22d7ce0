"""N-gram drafting in Triton: a request is one unit of work, its text a loop over tiles.

A lane keeps its longest run and the first place of it, as float32; only at the end lanes are
reduced, since A5's compiler takes no reduction to a value and its index.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from ascend_ops_core.devices import current_facts
from ascend_ops_core.kernels import as_int64
from ascend_ops_core.launch import launch
from ascend_ops_core.tiling import block_of, next_power_of_two

# Tokens, at most int64.
_STREAMED_BYTES = 8
# Tokens as int32 and float32, the run, its length, two best values, and masks.
_LIVE_BYTES = 36

_NOWHERE = tl.constexpr(16777216.0)


@triton.jit
def _propose_ngrams_kernel(
    drafts_ptr,
    counts_ptr,
    tokens_ptr,
    lengths_ptr,
    stride,
    width,
    limit,
    programs,
    SHORTEST: tl.constexpr,
    LONGEST: tl.constexpr,
    MOST: tl.constexpr,
    BLOCK: tl.constexpr,
    DRAFTS: tl.constexpr,
):
    lanes = tl.arange(0, BLOCK)
    for unit in range(tl.program_id(0), programs, tl.num_programs(0)):
        length = tl.load(lengths_ptr + unit).to(tl.int32)
        length = tl.where(length < width, length, width)
        row = tokens_ptr + as_int64(unit) * stride
        best = tl.zeros((BLOCK,), tl.float32)
        best_place = tl.full((BLOCK,), _NOWHERE, tl.float32)
        for start in range(0, length, BLOCK):
            run = tl.full((BLOCK,), 1.0, tl.float32)
            matched = tl.zeros((BLOCK,), tl.float32)
            for back in range(1, LONGEST + 1):
                last = tl.load(row + length - back, mask=back <= length, other=0).to(tl.int32)
                inside = (lanes < length - start) & (lanes >= back - start)
                token = tl.load(row + start + lanes - back, mask=inside, other=0).to(tl.int32)
                # Comparisons of int32 are scalar on A2, those of float32 are not.
                differs = (token ^ last).to(tl.float32)
                run = tl.where((differs == 0.0) & inside, run, 0.0)
                matched += run
            longer = matched > best
            best = tl.where(longer, matched, best)
            best_place = tl.where(longer, lanes.to(tl.float32) + start, best_place)
        winner = tl.max(best, axis=0)
        place = tl.min(tl.where(best == winner, best_place, _NOWHERE), axis=0).to(tl.int32)
        count = length - place
        count = tl.where(limit - length < count, limit - length, count)
        count = tl.where(count < MOST, count, MOST)
        count = tl.where((winner >= SHORTEST) & (count > 0), count, 0)
        column = tl.arange(0, DRAFTS)
        draft = tl.load(row + place + column, mask=column < count, other=-1).to(tl.int32)
        tl.store(drafts_ptr + unit * MOST + column, draft, mask=column < MOST)
        tl.store(counts_ptr + unit, count)


def propose_ngrams(
    tokens: torch.Tensor,
    lengths: torch.Tensor,
    shortest: int,
    longest: int,
    most: int,
    limit: int,
) -> tuple[torch.Tensor, torch.Tensor]:
    """See :func:`ascend_specdec.ops.ngram.propose_ngrams`."""
    requests, width = tokens.shape
    drafts = torch.empty(requests, most, dtype=torch.int32, device=tokens.device)
    counts = torch.empty(requests, dtype=torch.int32, device=tokens.device)
    arguments = {
        "drafts_ptr": drafts,
        "counts_ptr": counts,
        "tokens_ptr": tokens,
        "lengths_ptr": lengths.contiguous(),
        "stride": tokens.stride(0),
        "width": width,
        "limit": limit,
        "programs": requests,
    }
    block = block_of(
        current_facts(),
        streamed=_STREAMED_BYTES,
        local=_LIVE_BYTES,
        maximum=next_power_of_two(width),
    )
    constants = {
        "SHORTEST": shortest,
        "LONGEST": longest,
        "MOST": most,
        "BLOCK": block,
        "DRAFTS": next_power_of_two(most),
    }
    launch(_propose_ngrams_kernel, requests, arguments, constants)
    return drafts, counts
