"""The selection for a CPU with few queries: keys are scored where they lie."""

from __future__ import annotations

import numpy as np
import torch
from ascend_ops_core.cpu_apart import apart
from ascend_ops_core.cpu_numeric import FASTMATH, as_numpy, widen
from ascend_ops_core.cpu_products import widen_rows
from ascend_ops_core.cpu_tiles import aligned_rows, tiled_product
from numba import njit, prange

from ascend_attention.ops.indexer.cpu import supports as supports
from ascend_attention.ops.token_indexer.batch import owners

# Keys that one task scores.
_CHUNK = 64


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


@njit(fastmath=FASTMATH, cache=True)
def _score(query, weights, flat, over_blocks, over_rows, rows, blocks, first, last, scores):  # type: ignore[no-untyped-def]
    """Fill ``scores[first:last]`` with those of one query ``[H, D]`` for a request's keys."""
    heads, width = query.shape
    wide = aligned_rows(heads, width)
    widen_rows(query, wide)
    keys = np.empty((last - first, width), dtype=np.float32)
    for s in range(first, last):
        column = s // rows
        start = np.int64(blocks[column]) * over_blocks + (s - column * rows) * over_rows
        source = flat[start : start + width]
        key = keys[s - first]
        for d in range(width):
            key[d] = widen(source[d])
    dots = np.empty((heads, last - first), dtype=np.float32)
    tiled_product(wide, 0, heads, keys, 0, last - first, dots, 0)
    for r in range(last - first):
        score = np.float32(0)
        for h in range(heads):
            # NaN is no number that is at most 0.
            if not dots[h, r] <= np.float32(0):
                score += weights[h] * dots[h, r]
        scores[first + r] = score


_score_keys = apart(_score)


@njit(fastmath=FASTMATH, parallel=True, cache=True)
def _select(  # type: ignore[no-untyped-def]
    query, weights, flat, over_blocks, over_rows, rows, table, request, seen_by, out
):
    queries = query.shape[0]
    top_k = out.shape[1]
    longest = 0
    for t in range(queries):
        if seen_by[t] > top_k:
            longest = max(longest, seen_by[t])
    # Of one long context several threads score a part each.
    chunks = (longest + _CHUNK - 1) // _CHUNK
    scores = np.empty((queries, longest), dtype=np.float32)
    for task in prange(queries * chunks):
        t = task // chunks
        first = (task - t * chunks) * _CHUNK
        last = min(seen_by[t], first + _CHUNK)
        if seen_by[t] > top_k and first < last:
            _score_keys(
                query[t], weights[t], flat, over_blocks, over_rows, rows, table[request[t]], first,
                last, scores[t],
            )  # fmt: skip
    for t in prange(queries):
        chosen = out[t]
        seen = seen_by[t]
        kept = min(seen, top_k)
        for s in range(kept):
            chosen[s] = s
        for s in range(kept, top_k):
            chosen[s] = -1
        if seen > top_k:
            best = scores[t, :top_k].copy()
            for root in range(top_k // 2 - 1, -1, -1):
                _sift(best, chosen, root, top_k)
            for s in range(top_k, seen):
                score = scores[t, s]
                if score > best[0]:
                    best[0] = score
                    chosen[0] = s
                    _sift(best, chosen, 0, top_k)
