"""A layer's caches, selection and attention for a few tokens on a CPU, in two kernels.

The same work as a chain of operators costs a decode step more in calls than in arithmetic. The
first kernel writes the window, projects and writes compressor states and makes the indexer's
queries; between the two, entries that the step completes are finished by operators, which few
steps need; the second kernel selects entries and attends.

Everything here is numpy: memory of the engine's caches as flat arrays with strides, bfloat16 as its
bits. Shapes: T tokens, H hidden size, h heads, D head width, L query rank.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import torch
from ascend_ops_core.cpu_numeric import FASTMATH, as_numpy, narrow, widen
from ascend_ops_core.cpu_products import ROWS_PER_TASK, product, widen_rows
from numba import njit, prange

from ascend_attention.ops.indexer.cpu import key_score, sift
from ascend_attention.ops.mla.cpu import rotate
from ascend_attention.ops.sparse_attention.cpu import attend_head, row_starts

MOST_TOKENS = 16
"""With more tokens the products are GEMMs, which the chain of operators uses."""

# Parts that one token's scores and heads are cut into, so that it keeps several threads busy.
_PARTS = 4

Array = np.ndarray[Any, Any]


class FlatCache(NamedTuple):
    """Memory of a paged cache ``[B, P, D]``.

    Attributes:
        memory: all of it, one axis.
        over_blocks: values from one block to the next.
        over_rows: values from one row to the next.
        blocks: ``B``.
        rows: ``P``.
    """

    memory: Array
    over_blocks: int
    over_rows: int
    blocks: int
    rows: int

    @classmethod
    def of(cls, cache: torch.Tensor) -> FlatCache:
        """The memory of ``cache``, whose rows have no gaps inside."""
        blocks, rows, width = cache.shape
        over_blocks, over_rows, _ = cache.stride()
        span = (blocks - 1) * over_blocks + (rows - 1) * over_rows + width
        return cls(as_numpy(cache.as_strided((span,), (1,))), over_blocks, over_rows, blocks, rows)


class RowWrites(NamedTuple):
    """A cache and where each token's row goes in it.

    Attributes:
        cache: the cache.
        block: ``[T]`` int64; negative for tokens that write nothing.
        offset: ``[T]`` int64.
    """

    cache: FlatCache
    block: Array
    offset: Array


class StateWrites(NamedTuple):
    """A compressor's projection, and where its states go.

    Attributes:
        weight: ``[2 * S, H]`` of the model's dtype.
        ape: ``[ratio, S]`` float32.
        rows: float32 cache of width ``2 * S``, and the places in it.
    """

    weight: Array
    ape: Array
    rows: RowWrites


class IndexQuery(NamedTuple):
    """Weights of the indexer's queries.

    Attributes:
        query: ``[n * d, L]``.
        head: ``[n, H]``, projection to the weights of the heads.
        heads: ``n``.
        factor: on the heads' weights.
    """

    query: Array
    head: Array
    heads: int
    factor: float


class RowReads(NamedTuple):
    """Rows of a cache that every token attends to.

    Attributes:
        cache: the cache.
        block: ``[T, N]`` int64; negative for padding.
        offset: ``[T, N]`` int64.
        valid: ``[T, N]`` bool, or ``[0, 0]`` where all rows but padding are valid.
    """

    cache: FlatCache
    block: Array
    offset: Array
    valid: Array


class Selection(NamedTuple):
    """What entries are selected from.

    Attributes:
        query: ``[T, n, d]``, rotated.
        weights: ``[T, n]`` float32.
        keys: cache of the keys, of ``query``'s dtype.
        key_table: ``[R, nb]``, blocks of keys of every request.
        entry_table: ``[R, nb]``, blocks of entries of every request.
        entries: cache of the entries.
        request: ``[T]`` int64.
        visible: ``[T]`` int64, entries that each token sees.
        top_k: most entries that a token keeps.
    """

    query: Array
    weights: Array
    keys: FlatCache
    key_table: Array
    entry_table: Array
    entries: FlatCache
    request: Array
    visible: Array
    top_k: int


NO_MASK = np.zeros((0, 0), dtype=np.bool_)
_NO_INDEX = np.zeros((0, 0), dtype=np.int64)


class StepWrites(NamedTuple):
    """What the first kernel takes besides the step's tokens, and what it fills.

    Attributes:
        arguments: of :func:`write_and_project_few`, behind the first three.
        index_query: ``[T, n, d]`` in the model's dtype, queries of the indexer; empty without one.
        index_weights: ``[T, n]`` float32, weights of its heads.
    """

    arguments: tuple[Any, ...]
    index_query: Array
    index_weights: Array


def step_writes(
    tokens: Array,
    position: Array,
    cos: Array,
    sin: Array,
    window: RowWrites,
    states: tuple[StateWrites, ...],
    index: IndexQuery | None,
) -> StepWrites:
    """What a step's tokens add to the caches, and where the indexer's queries go.

    Args:
        tokens: ``[T, H]``, of which only the shape and the dtype count.
        position: ``[T]`` int64.
        cos: ``[T, R / 2]`` float32.
        sin: the same.
        window: where the key-value rows go.
        states: the compressors of the layer: none, its own, or the indexer's as well.
        index: weights of the indexer, or None.
    """
    none = _no_states(tokens)
    own = states[0] if states else none
    other = states[1] if len(states) > 1 else none
    if index is None:
        weights = np.empty((0, 0), dtype=np.float32)
        query, wq, wp, factor = tokens[:0].reshape(0, 0, 1), tokens[:0, :1], tokens[:0], 0.0
    else:
        shape = tokens.shape[0], index.heads
        weights = np.empty(shape, dtype=np.float32)
        query = np.empty((*shape, index.query.shape[0] // index.heads), dtype=tokens.dtype)
        wq, wp, factor = index.query, index.head, index.factor
    arguments = (
        position, cos, sin, *window.cache, window.block, window.offset,
        own.weight, own.ape, *own.rows.cache, own.rows.block, own.rows.offset,
        other.weight, other.ape, *other.rows.cache, other.rows.block, other.rows.offset,
        wq, wp, np.float32(factor), query, weights,
    )  # fmt: skip
    return StepWrites(arguments, query, weights)


def attend(
    query: Array,
    sinks: Array,
    scale: float,
    out: Array,
    window: RowReads,
    entries: RowReads | Selection | None,
) -> None:
    """Attention over the window and over all given entries, or those that are selected.

    Args:
        query: ``[T, h, D]``.
        sinks: ``[h]`` float32.
        scale: factor on the dot products.
        out: ``[T, h, D]``, written.
        window: rows of the sliding window.
        entries: compressed entries, or what they are selected from, or None.
    """
    given = query, sinks, np.float32(scale), out
    seen = window.cache.memory, *window.cache[1:3], window.block, window.offset, window.valid
    if isinstance(entries, Selection):
        select_and_attend_few(
            *given, *seen, entries.entries.memory, *entries.entries[1:3], entries.entries.rows,
            entries.entry_table, entries.query, entries.weights, entries.keys.memory,
            *entries.keys[1:3], entries.keys.rows, entries.key_table, entries.request,
            entries.visible, entries.top_k,
        )  # fmt: skip
        return
    if entries is None:
        entries = RowReads(window.cache, _NO_INDEX, _NO_INDEX, NO_MASK)
    attend_few(
        *given, *seen, entries.cache.memory, *entries.cache[1:3], entries.block, entries.offset,
        entries.valid,
    )  # fmt: skip


def _no_states(x: Array) -> StateWrites:
    flat = FlatCache(np.empty(0, dtype=np.float32), 0, 0, 0, 0)
    nowhere = np.empty(0, dtype=np.int64)
    ape = np.empty((1, 0), dtype=np.float32)
    return StateWrites(x[:0], ape, RowWrites(flat, nowhere, nowhere))


@njit(cache=True)
def _inside(blocks, rows, block, offset):  # type: ignore[no-untyped-def]
    inside = True
    for i in range(block.shape[0]):
        inside = inside and block[i] < blocks and offset[i] < rows
    return inside


@njit(fastmath=FASTMATH, cache=True)
def _store(memory, over_blocks, over_rows, block, offset, rows):  # type: ignore[no-untyped-def]
    width = rows.shape[1]
    for i in range(block.shape[0]):
        if block[i] >= 0 and offset[i] >= 0:
            start = block[i] * over_blocks + offset[i] * over_rows
            target = memory[start : start + width]
            for d in range(width):
                target[d] = narrow(memory, widen(rows[i, d]))


@njit(fastmath=FASTMATH, cache=True)
def _project(x, weight, ape, position, first, out):  # type: ignore[no-untyped-def]
    """One strip of a compressor's projection."""
    ratio, series = ape.shape
    last = min(weight.shape[0], first + ROWS_PER_TASK)
    product(x, 0, x.shape[0], weight, first, last, out, first)
    for t in range(x.shape[0]):
        for n in range(max(first, series), last):
            out[t, n] += ape[position[t] % ratio, n - series]


@njit(fastmath=FASTMATH, cache=True)
def _index_head(latent, weight, head, cos, sin, query):  # type: ignore[no-untyped-def]
    """One head of the indexer's queries, rounded like a product and then like a rotation."""
    tokens, _, width = query.shape
    part = np.empty((tokens, width), dtype=np.float32)
    product(latent, 0, tokens, weight, head * width, (head + 1) * width, part, 0)
    for t in range(tokens):
        row = part[t]
        for d in range(width):
            row[d] = widen(narrow(query, row[d]))
        rotate(row, cos[t], sin[t], np.float32(1))
        for d in range(width):
            query[t, head, d] = narrow(query, row[d])


@njit(fastmath=FASTMATH, parallel=True, cache=True)
def write_and_project_few(  # type: ignore[no-untyped-def]
    hidden, latent, kv, position, cos, sin,
    win, win_ob, win_or, win_blocks, win_rows, win_block, win_offset,
    w0, ape0, st0, ob0, or0, blocks0, rows0, block0, offset0,
    w1, ape1, st1, ob1, or1, blocks1, rows1, block1, offset1,
    wq, wp, factor, query, weights,
):  # fmt: skip
    """Write window and states, fill the indexer's queries; False if a row is outside its cache."""
    if not (
        _inside(win_blocks, win_rows, win_block, win_offset)
        and _inside(blocks0, rows0, block0, offset0)
        and _inside(blocks1, rows1, block1, offset1)
    ):
        return False
    _store(win, win_ob, win_or, win_block, win_offset, kv)
    strips0 = (w0.shape[0] + ROWS_PER_TASK - 1) // ROWS_PER_TASK
    strips1 = (w1.shape[0] + ROWS_PER_TASK - 1) // ROWS_PER_TASK
    heads = weights.shape[1]
    tasks = strips0 + strips1 + heads + (1 if heads > 0 else 0)
    if tasks == 0:
        return True
    tokens = hidden.shape[0]
    x = np.empty(hidden.shape, dtype=np.float32)
    widen_rows(hidden, x)
    wide_latent = np.empty(latent.shape, dtype=np.float32)
    widen_rows(latent, wide_latent)
    made0 = np.empty((tokens, w0.shape[0]), dtype=np.float32)
    made1 = np.empty((tokens, w1.shape[0]), dtype=np.float32)
    for task in prange(tasks):
        if task < strips0:
            _project(x, w0, ape0, position, task * ROWS_PER_TASK, made0)
        elif task < strips0 + strips1:
            _project(x, w1, ape1, position, (task - strips0) * ROWS_PER_TASK, made1)
        elif task < strips0 + strips1 + heads:
            _index_head(wide_latent, wq, task - strips0 - strips1, cos, sin, query)
        else:
            product(x, 0, tokens, wp, 0, heads, weights, 0)
            for t in range(tokens):
                for n in range(heads):
                    weights[t, n] = widen(narrow(hidden, weights[t, n])) * factor
    _store(st0, ob0, or0, block0, offset0, made0)
    _store(st1, ob1, or1, block1, offset1, made1)
    return True


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


@njit(fastmath=FASTMATH, parallel=True, cache=True)
def attend_few(  # type: ignore[no-untyped-def]
    query, sinks, scale, out, win, win_ob, win_or, win_block, win_offset, win_valid,
    more, more_ob, more_or, more_block, more_offset, more_valid,
):  # fmt: skip
    tokens, heads, _ = query.shape
    parts = min(heads, (_PARTS + tokens - 1) // tokens)
    for task in prange(tokens * parts):
        t = task // parts
        first = np.empty(win_block.shape[1], dtype=np.int64)
        n = row_starts(
            win_block, win_offset, win_valid, win_ob, win_or, t, win_block.shape[1], first, 0
        )
        second = np.empty(more_block.shape[1], dtype=np.int64)
        m = row_starts(
            more_block, more_offset, more_valid, more_ob, more_or, t, more_block.shape[1], second, 0
        )
        _attend_part(
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


@njit(fastmath=FASTMATH, parallel=True, cache=True)
def select_and_attend_few(  # type: ignore[no-untyped-def]
    query, sinks, scale, out, win, win_ob, win_or, win_block, win_offset, win_valid,
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
        counts[t] = _choose(scores[t], max(visible[t], 0), top_k, starts[t])
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
        n = row_starts(
            win_block, win_offset, win_valid, win_ob, win_or, t, win_block.shape[1], first, 0
        )
        _attend_part(
            query[t], sinks, scale, out[t], task - t * parts, parts, win, first, n,
            more, starts[t], counts[t],
        )  # fmt: skip
