"""The indexer's selection for a CPU with few tokens: keys are scored where they lie."""

from __future__ import annotations

import numpy as np
import torch
from ascend_ops_core.cpu_numeric import FASTMATH, as_numpy, widen
from numba import njit, prange

_FEW_TOKENS = 32


def supports(query: torch.Tensor, head_weights: torch.Tensor, key_cache: torch.Tensor) -> bool:
    """A few contiguous float32 or bfloat16 queries, and keys of their dtype in unit steps."""
    return (
        0 < query.shape[0] <= _FEW_TOKENS
        and query.dtype in (torch.float32, torch.bfloat16)
        and query.is_contiguous()
        and key_cache.dtype == query.dtype
        and key_cache.stride(-1) == 1
        and key_cache.numel() > 0
        and head_weights.dtype == torch.float32
        and head_weights.is_contiguous()
    )


def select_entries(
    query: torch.Tensor,
    head_weights: torch.Tensor,
    key_cache: torch.Tensor,
    block_table: torch.Tensor,
    request: torch.Tensor,
    visible: torch.Tensor,
    top_k: int,
) -> torch.Tensor:
    """See :func:`ascend_attention.ops.indexer.select_entries`.

    Args:
        query: ``[T, H, D]``.
        head_weights: ``[T, H]`` float32.
        key_cache: ``[B, P, D]``.
        block_table: ``[R, nb]``.
        request: ``[T]`` int64, the request of every token.
        visible: ``[T]`` int64, entries that each token sees.
        top_k: entries to keep; some token sees more.
    """
    out = torch.empty((query.shape[0], top_k), dtype=torch.int64)
    blocks, rows, width = key_cache.shape
    over_blocks, over_rows, _ = key_cache.stride()
    span = (blocks - 1) * over_blocks + (rows - 1) * over_rows + width
    _select(
        as_numpy(query),
        as_numpy(head_weights),
        as_numpy(key_cache.as_strided((span,), (1,))),
        over_blocks,
        over_rows,
        rows,
        as_numpy(block_table.contiguous()),
        as_numpy(request),
        as_numpy(visible),
        as_numpy(out),
    )
    return out


@njit(fastmath=FASTMATH, cache=True)
def key_score(query, weights, flat, start, wide):  # type: ignore[no-untyped-def]
    """Score of the key at ``start``; ``wide [D]`` is scratch."""
    width = query.shape[1]
    key = flat[start : start + width]
    for d in range(width):
        wide[d] = widen(key[d])
    score = np.float32(0)
    for h in range(query.shape[0]):
        row = query[h]
        dot = np.float32(0)
        for d in range(width):
            dot += row[d] * wide[d]
        if not dot <= np.float32(0):
            score += weights[h] * dot
    return score


@njit(fastmath=FASTMATH, cache=True)
def sift(scores, entries, root, count):  # type: ignore[no-untyped-def]
    """Restore a heap of ``count`` scores with the smallest in front, below ``root``."""
    while True:
        child = 2 * root + 1
        if child >= count:
            return
        if child + 1 < count and scores[child + 1] < scores[child]:
            child += 1
        if scores[root] <= scores[child]:
            return
        scores[root], scores[child] = scores[child], scores[root]
        entries[root], entries[child] = entries[child], entries[root]
        root = child


@njit(fastmath=FASTMATH, parallel=True, cache=True)
def _select(  # type: ignore[no-untyped-def]
    query, weights, flat, over_blocks, over_rows, rows, table, request, visible, out
):
    tokens, heads, width = query.shape
    top_k = out.shape[1]
    for t in prange(tokens):
        chosen = out[t]
        seen = visible[t]
        kept = min(seen, top_k)
        for s in range(kept):
            chosen[s] = s
        for s in range(kept, top_k):
            chosen[s] = -1
        if seen > top_k:
            wide_query = np.empty((heads, width), dtype=np.float32)
            for h in range(heads):
                for d in range(width):
                    wide_query[h, d] = widen(query[t, h, d])
            wide_key = np.empty(width, dtype=np.float32)
            best = np.empty(top_k, dtype=np.float32)
            for s in range(seen):
                column = s // rows
                start = table[request[t], column] * over_blocks + (s - column * rows) * over_rows
                score = key_score(wide_query, weights[t], flat, start, wide_key)
                if s < top_k:
                    best[s] = score
                    if s == top_k - 1:
                        for root in range(top_k // 2 - 1, -1, -1):
                            sift(best, chosen, root, top_k)
                elif score > best[0]:
                    best[0] = score
                    chosen[0] = s
                    sift(best, chosen, 0, top_k)
