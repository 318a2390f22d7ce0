"""Definition of n-gram drafting, without waiting for a device: shapes depend on no value."""

from __future__ import annotations

import torch


def propose_ngrams(
    tokens: torch.Tensor,
    lengths: torch.Tensor,
    shortest: int,
    longest: int,
    most: int,
    limit: int,
) -> tuple[torch.Tensor, torch.Tensor]:
    """See :func:`ascend_specdec.ops.ngram.propose_ngrams`."""
    width = tokens.shape[1]
    length = lengths.long().clamp(0, width).unsqueeze(1)
    # Column e holds how many tokens in front of position e equal the last ones of the text.
    place = torch.arange(width, device=tokens.device)
    matched = torch.zeros_like(tokens, dtype=torch.int64)
    run = (place >= 1) & (place < length)
    for back in range(1, min(longest, width) + 1):
        last = tokens.gather(1, (length - back).clamp(min=0))
        run = run & (place >= back) & (tokens.roll(back, dims=1) == last)
        matched = matched + run
    best = matched.amax(dim=1, keepdim=True)
    start = (matched == best).long().argmax(dim=1, keepdim=True)
    count = torch.minimum(length - start, limit - length).clamp(0, most)
    count = count.masked_fill(best < shortest, 0)
    column = torch.arange(most, device=tokens.device)
    drafts = tokens.gather(1, (start + column).clamp(max=width - 1))
    return drafts.masked_fill(column >= count, -1).int(), count.squeeze(1).int()
