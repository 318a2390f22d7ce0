"""N-gram drafting on a CPU: one pass over each request's tokens."""

from __future__ import annotations

import torch
from ascend_ops_core.cpu_numeric import as_numpy
from numba import njit


def propose_ngrams(
    tokens: torch.Tensor,
    lengths: torch.Tensor,
    shortest: int,
    longest: int,
    most: int,
    limit: int,
) -> tuple[torch.Tensor, torch.Tensor]:
    """See :func:`ascend_specdec.ops.ngram.propose_ngrams`."""
    requests = tokens.shape[0]
    drafts = torch.full((requests, most), -1, dtype=torch.int32)
    counts = torch.zeros(requests, dtype=torch.int32)
    # Flat, since rows of a larger table have a stride that numba would compile anew for.
    stride = tokens.stride(0)
    flat = tokens.as_strided(((requests - 1) * stride + tokens.shape[1],), (1,))
    _propose(
        as_numpy(flat),
        stride,
        tokens.shape[1],
        as_numpy(lengths.contiguous()),
        shortest,
        longest,
        limit,
        as_numpy(drafts),
        as_numpy(counts),
    )
    return drafts, counts


@njit(cache=True)
def _propose(  # type: ignore[no-untyped-def]
    flat, stride, width, lengths, shortest, longest, limit, drafts, counts
):
    for r in range(lengths.shape[0]):
        length = min(lengths[r], width)
        row = flat[r * stride : r * stride + width]
        best, start = 0, 0
        for end in range(1, length):
            run = 0
            while run < longest and run < end and row[end - 1 - run] == row[length - 1 - run]:
                run += 1
            if run > best:
                best, start = run, end
                if best == longest:
                    break
        if best < shortest:
            continue
        count = min(drafts.shape[1], length - start, limit - length)
        for i in range(count):
            drafts[r, i] = row[start + i]
        counts[r] = max(count, 0)
