"""The selection for a CPU with few queries: keys are scored where they lie."""

from __future__ import annotations

import numpy as np
import torch
from ascend_ops_core.cpu_numeric import FASTMATH, as_numpy, widen
from numba import njit, prange

from ascend_attention.ops.indexer.cpu import key_score
from ascend_attention.ops.indexer.cpu import supports as supports
from ascend_attention.ops.token_indexer.batch import owners


def select_tokens(
    query: torch.Tensor,
    head_weights: torch.Tensor,
    key_cache: torch.Tensor,
    block_table: torch.Tensor,
    query_ends: torch.Tensor,
    seq_lens: torch.Tensor,
    top_k: int,
) -> torch.Tensor:
    """See :func:`ascend_attention.ops.token_indexer.select_tokens`."""
    request, seen = owners(query_ends, seq_lens, query.shape[0])
    out = torch.empty((query.shape[0], top_k), dtype=torch.int32)
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
        as_numpy(seen),
        as_numpy(out),
    )
    return out


@njit(cache=True)
def _worse(scores, tokens, a, b):  # type: ignore[no-untyped-def]
    """Whether ``a`` is dropped before ``b``: a smaller score, or as large and later."""
    if scores[a] == scores[b]:
        return tokens[a] > tokens[b]
    return scores[a] < scores[b]


@njit(cache=True)
def _sift(scores, tokens, root, count):  # type: ignore[no-untyped-def]
    """Restore a heap of ``count`` scores with the worst in front, below ``root``."""
    while True:
        child = 2 * root + 1
        if child >= count:
            return
        if child + 1 < count and _worse(scores, tokens, child + 1, child):
            child += 1
        if not _worse(scores, tokens, child, root):
            return
        scores[root], scores[child] = scores[child], scores[root]
        tokens[root], tokens[child] = tokens[child], tokens[root]
        root = child


@njit(fastmath=FASTMATH, parallel=True, cache=True)
def _select(  # type: ignore[no-untyped-def]
    query, weights, flat, over_blocks, over_rows, rows, table, request, seen_by, out
):
    queries, heads, width = query.shape
    top_k = out.shape[1]
    for t in prange(queries):
        chosen = out[t]
        seen = seen_by[t]
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
                            _sift(best, chosen, root, top_k)
                elif score > best[0]:
                    best[0] = score
                    chosen[0] = s
                    _sift(best, chosen, 0, top_k)
