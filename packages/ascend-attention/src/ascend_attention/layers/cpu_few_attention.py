"""Selection and attention of a few tokens over a layer's caches on a CPU.

Memory of the caches is flat, with strides, and bfloat16 its bits. Shapes: T tokens, h heads, D head
width, R requests, nb blocks of a request.
"""

from __future__ import annotations

import numpy as np
from ascend_ops_core.cpu_apart import apart
from ascend_ops_core.cpu_numeric import FASTMATH, narrow, widen
from numba import njit, prange

from ascend_attention.ops.indexer.cpu import key_score, sift
from ascend_attention.ops.sparse_attention.cpu import attend_head

# Parts that one token's scores and heads are cut into, so that it keeps several threads busy.
_PARTS = 4


@njit(cache=True)
def _starts(block, offset, over_blocks, over_rows, t, out):  # type: ignore[no-untyped-def]
    """Fill ``out`` with where the rows of token ``t`` start in flat memory; return how many."""
    count = 0
    for i in range(block.shape[1]):
        if block[t, i] >= 0 and offset[t, i] >= 0:
            out[count] = block[t, i] * over_blocks + offset[t, i] * over_rows
            count += 1
    return count


@njit(fastmath=FASTMATH, cache=True)
def _attend_part(  # type: ignore[no-untyped-def]
    query, sinks, scale, out, part, parts, win, win_start, win_count, more, more_start, more_count
):
    """Some heads of one token over the rows that start at the given places."""
    heads, width = query.shape
    count = win_count + more_count
    rows = np.empty((count, width), dtype=np.float32)
    for r in range(win_count):
        source = win[win_start[r] : win_start[r] + width]
        target = rows[r]
        for d in range(width):
            target[d] = widen(source[d])
    for r in range(more_count):
        source = more[more_start[r] : more_start[r] + width]
        target = rows[win_count + r]
        for d in range(width):
            target[d] = widen(source[d])
    weights = np.empty(count, dtype=np.float32)
    wide = np.empty(width, dtype=np.float32)
    acc = np.empty(width, dtype=np.float32)
    for h in range(part * heads // parts, (part + 1) * heads // parts):
        for d in range(width):
            wide[d] = widen(query[h, d])
        attend_head(wide, rows, count, sinks[h], scale, weights, acc)
        for d in range(width):
            out[h, d] = narrow(out, acc[d])


_attend_heads = apart(_attend_part)


@njit(fastmath=FASTMATH, parallel=True, cache=True)
def _attend(  # type: ignore[no-untyped-def]
    query, sinks, scale, out, win, win_ob, win_or, win_block, win_offset,
    more, more_ob, more_or, more_block, more_offset,
):  # fmt: skip
    tokens, heads, _ = query.shape
    parts = min(heads, (_PARTS + tokens - 1) // tokens)
    for task in prange(tokens * parts):
        t = task // parts
        first = np.empty(win_block.shape[1], dtype=np.int64)
        n = _starts(win_block, win_offset, win_ob, win_or, t, first)
        second = np.empty(more_block.shape[1], dtype=np.int64)
        m = _starts(more_block, more_offset, more_ob, more_or, t, second)
        _attend_heads(
            query[t], sinks, scale, out[t], task - t * parts, parts, win, first, n, more, second, m
        )


@njit(fastmath=FASTMATH, cache=True)
def _choose(scores, seen, top_k, chosen):  # type: ignore[no-untyped-def]
    """Fill ``chosen`` with the best entries of ``scores [seen]``; return how many."""
    if seen <= top_k:
        for s in range(seen):
            chosen[s] = s
        return seen
    best = np.empty(top_k, dtype=np.float32)
    for s in range(top_k):
        best[s] = scores[s]
        chosen[s] = s
    for root in range(top_k // 2 - 1, -1, -1):
        sift(best, chosen, root, top_k)
    for s in range(top_k, seen):
        if scores[s] > best[0]:
            best[0] = scores[s]
            chosen[0] = s
            sift(best, chosen, 0, top_k)
    return top_k


_choose_best = apart(_choose)


@njit(fastmath=FASTMATH, parallel=True, cache=True)
def _select_and_attend(  # type: ignore[no-untyped-def]
    query, sinks, scale, out, win, win_ob, win_or, win_block, win_offset,
    more, more_ob, more_or, more_rows, more_table,
    index_query, index_weights, keys, key_ob, key_or, key_rows, key_table,
    request, visible, top_k,
):  # fmt: skip
    tokens, heads, _ = query.shape
    index_heads, width = index_query.shape[1:]
    parts = min(heads, (_PARTS + tokens - 1) // tokens)
    longest = 0
    for t in range(tokens):
        longest = max(longest, visible[t])
    scores = np.empty((tokens, longest if longest > top_k else 0), dtype=np.float32)
    if longest > top_k:
        for task in prange(tokens * parts):
            t = task // parts
            part = task - t * parts
            seen = visible[t]
            if seen > top_k:
                wide_query = np.empty((index_heads, width), dtype=np.float32)
                for h in range(index_heads):
                    for d in range(width):
                        wide_query[h, d] = widen(index_query[t, h, d])
                wide_key = np.empty(width, dtype=np.float32)
                for s in range(part * seen // parts, (part + 1) * seen // parts):
                    column = s // key_rows
                    start = (
                        np.int64(key_table[request[t], column]) * key_ob
                        + (s - column * key_rows) * key_or
                    )
                    scores[t, s] = key_score(wide_query, index_weights[t], keys, start, wide_key)
    starts = np.empty((tokens, top_k), dtype=np.int64)
    counts = np.empty(tokens, dtype=np.int64)
    for t in range(tokens):
        counts[t] = _choose_best(scores[t], max(visible[t], 0), top_k, starts[t])
        for i in range(counts[t]):
            entry = starts[t, i]
            column = entry // more_rows
            starts[t, i] = (
                np.int64(more_table[request[t], column]) * more_ob
                + (entry - column * more_rows) * more_or
            )
    for task in prange(tokens * parts):
        t = task // parts
        first = np.empty(win_block.shape[1], dtype=np.int64)
        n = _starts(win_block, win_offset, win_ob, win_or, t, first)
        _attend_heads(
            query[t], sinks, scale, out[t], task - t * parts, parts, win, first, n,
            more, starts[t], counts[t],
        )  # fmt: skip


_attend_to_selected, _attend_to_all = apart(_select_and_attend), apart(_attend)


@njit(cache=True)
def attend_few_tokens(  # type: ignore[no-untyped-def]
    query, sinks, scale, out, window, window_rows, entries, entry_rows, top_k, index_query,
    index_weights, keys, selection,
):  # fmt: skip
    """Attention over the window, and over all given entries or those that are selected.

    Args:
        query: ``[T, h, D]``.
        sinks: ``[h]`` float32.
        scale: float32, factor on the dot products.
        out: ``[T, h, D]``, filled.
        window: ``FlatCache`` of the key-value rows.
        window_rows: block and offset ``[T, N]`` of what every token sees of it.
        entries: ``FlatCache`` of the compressed entries.
        entry_rows: block and offset ``[T, E]`` of what every token sees of it, where none are
            selected.
        top_k: most entries that a token keeps; 0 without a selection.
        index_query: ``[T, n, d]``, rotated.
        index_weights: ``[T, n]`` float32.
        keys: ``FlatCache`` of the indexer's keys.
        selection: ``[R, nb]`` blocks of keys and of entries of every request, ``[T]`` int64
            request of every token and ``[T]`` int64 entries that each token sees.
    """
    if top_k > 0:
        key_table, entry_table, request, visible = selection
        _attend_to_selected(
            query, sinks, scale, out, window[0], window[1], window[2], window_rows[0],
            window_rows[1], entries[0], entries[1], entries[2], entries[4], entry_table,
            index_query, index_weights, keys[0], keys[1], keys[2], keys[4], key_table, request,
            visible, top_k,
        )  # fmt: skip
    else:
        _attend_to_all(
            query, sinks, scale, out, window[0], window[1], window[2], window_rows[0],
            window_rows[1], entries[0], entries[1], entries[2], entry_rows[0], entry_rows[1],
        )  # fmt: skip
