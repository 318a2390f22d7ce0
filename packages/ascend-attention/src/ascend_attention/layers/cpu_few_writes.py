"""What a few tokens add to a layer's caches on a CPU, and the indexer's queries of them.

Memory of the caches is flat, with strides, and bfloat16 its bits. Shapes: T tokens, H hidden size,
D width of an entry, L query rank, S width of a state's series, N entries that the step completes.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import torch
from ascend_ops_core.cpu_apart import apart
from ascend_ops_core.cpu_numeric import FASTMATH, as_numpy, narrow, widen
from ascend_ops_core.cpu_products import ROWS_PER_TASK, product, widen_rows
from numba import njit, prange

from ascend_attention.ops.compressor.cpu import pool_window
from ascend_attention.ops.mla.cpu import rotate

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

    @classmethod
    def none(cls, dtype: Any) -> FlatCache:
        """No cache."""
        return cls(np.empty(0, dtype=dtype), 0, 0, 0, 0)


class StateWeights(NamedTuple):
    """A compressor and its two caches.

    Attributes:
        weight: ``[2 * S, H]`` of the model's dtype; of no rows without a compressor.
        ape: ``[ratio, S]`` float32.
        norm: ``[D]`` float32.
        eps: float32, of the norm.
        cos: ``[positions, R / 2]`` float32, table of the compressed branch.
        sin: the same.
        states: float32 cache of width ``2 * S``.
        entries: cache of width ``D`` in the model's dtype.
    """

    weight: Array
    ape: Array
    norm: Array
    eps: np.float32
    cos: Array
    sin: Array
    states: FlatCache
    entries: FlatCache


class StateRows(NamedTuple):
    """Where a step's states go, and the entries that it completes.

    Attributes:
        block: ``[T]`` int64; negative for tokens that write nothing.
        offset: ``[T]`` int64.
        entry: ``[N]`` int64, index of every entry within its request.
        from_block: ``[N, overlap * ratio]`` int64, the states of every entry in order.
        from_offset: the same.
        to_block: ``[N]`` int64.
        to_offset: ``[N]`` int64.
    """

    block: Array
    offset: Array
    entry: Array
    from_block: Array
    from_offset: Array
    to_block: Array
    to_offset: Array


@njit(cache=True)
def _inside(cache, block, offset):  # type: ignore[no-untyped-def]
    inside = True
    for i in range(block.shape[0]):
        inside = inside and block[i] < cache[3] and offset[i] < cache[4]
    return inside


@njit(cache=True)
def _rows_inside(states, rows):  # type: ignore[no-untyped-def]
    inside = _inside(states[6], rows[0], rows[1]) and _inside(states[7], rows[5], rows[6])
    for n in range(rows[3].shape[0]):
        inside = inside and _inside(states[6], rows[3][n], rows[4][n])
    return inside


@njit(fastmath=FASTMATH, cache=True)
def _store(cache, block, offset, rows):  # type: ignore[no-untyped-def]
    memory = cache[0]
    width = rows.shape[1]
    for i in range(block.shape[0]):
        if block[i] >= 0 and offset[i] >= 0:
            start = block[i] * cache[1] + offset[i] * cache[2]
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
def _projections(  # type: ignore[no-untyped-def]
    hidden, latent, position, cos, sin, w0, ape0, made0, w1, ape1, made1, wq, wp, factor, query,
    weights,
):  # fmt: skip
    """Fill the states of both compressors and the indexer's queries in one parallel region."""
    strips0 = (w0.shape[0] + ROWS_PER_TASK - 1) // ROWS_PER_TASK
    strips1 = (w1.shape[0] + ROWS_PER_TASK - 1) // ROWS_PER_TASK
    heads = weights.shape[1]
    # Not in the call of prange, where numba makes no parallel loop of it.
    tasks = strips0 + strips1 + heads + (1 if heads > 0 else 0)
    tokens = hidden.shape[0]
    x = np.empty(hidden.shape, dtype=np.float32)
    widen_rows(hidden, x)
    wide_latent = np.empty(latent.shape, dtype=np.float32)
    widen_rows(latent, wide_latent)
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


@njit(fastmath=FASTMATH, error_model="numpy", cache=True)
def _finish(states, rows):  # type: ignore[no-untyped-def]
    """Write the entries that the step completes; their states are written."""
    _, ape, gain, eps, cos, sin, cache, entries = states
    _, _, entry, from_block, from_offset, to_block, to_offset = rows
    ratio, width = ape.shape[0], gain.shape[0]
    out = np.empty((1, width), dtype=np.float32)
    row = out[0]
    for n in range(entry.shape[0]):
        pool_window(
            cache[0], cache[1], cache[2], from_block[n], from_offset[n], entry[n] == 0, ratio, row
        )
        total = np.float32(0)
        for d in range(width):
            # The chain of operators rounds between all of these.
            row[d] = widen(narrow(entries[0], row[d]))
            total += row[d] * row[d]
        scale = np.float32(1) / np.sqrt(total / np.float32(width) + eps)
        for d in range(width):
            row[d] = widen(narrow(entries[0], row[d] * scale * gain[d]))
        position = entry[n] * ratio
        rotate(row, cos[position], sin[position], np.float32(1))
        _store(entries, to_block[n : n + 1], to_offset[n : n + 1], out)


_project_all, _finish_entries = apart(_projections), apart(_finish)


@njit(cache=True)
def write_few(  # type: ignore[no-untyped-def]
    hidden, latent, kv, position, cos, sin, window, window_rows, own, own_rows, other, other_rows,
    index, query, weights,
):  # fmt: skip
    """Write window, states and completed entries, and make the indexer's queries.

    Args:
        hidden: ``[T, H]``.
        latent: ``[T, L]``.
        kv: ``[T, D]``.
        position: ``[T]`` int64.
        cos: ``[T, R / 2]`` float32.
        sin: the same.
        window: :class:`FlatCache` of the key-value rows.
        window_rows: where they go, block and offset.
        own: :class:`StateWeights` of the layer's compressor.
        own_rows: :class:`StateRows`.
        other: of the indexer's compressor.
        other_rows: the same.
        index: the indexer's projections ``[n * d, L]`` and ``[n, H]``, and a factor.
        query: ``[T, n, d]``, filled; empty without an indexer.
        weights: ``[T, n]`` float32, filled.

    Returns:
        False if a row is outside its cache or table, and then nothing is written.
    """
    if not (
        _inside(window, window_rows[0], window_rows[1])
        and _rows_inside(own, own_rows)
        and _rows_inside(other, other_rows)
    ):
        return False
    _store(window, window_rows[0], window_rows[1], kv)
    tokens = hidden.shape[0]
    w0, w1 = own[0], other[0]
    if w0.shape[0] == 0 and weights.shape[1] == 0:
        return True
    made0 = np.empty((tokens, w0.shape[0]), dtype=np.float32)
    made1 = np.empty((tokens, w1.shape[0]), dtype=np.float32)
    _project_all(
        hidden, latent, position, cos, sin, w0, own[1], made0, w1, other[1], made1,
        index[0], index[1], index[2], query, weights,
    )  # fmt: skip
    _store(own[6], own_rows[0], own_rows[1], made0)
    _store(other[6], other_rows[0], other_rows[1], made1)
    _finish_entries(own, own_rows)
    _finish_entries(other, other_rows)
    return True
