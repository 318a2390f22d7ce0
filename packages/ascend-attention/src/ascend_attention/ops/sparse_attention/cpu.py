"""Sparse attention for a CPU with few tokens: rows are read where they lie.

The definition gathers every token's rows into a padded copy first; a decode step spends more
time on that, and on a dozen small torch calls, than on the products.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from ascend_ops_core.cpu_numeric import (
    FASTMATH,
    as_numpy,
    exp_f32,
    narrow,
    widen,
)
from numba import njit, prange

from ascend_attention.ops.sparse_attention.source import RowSource

_DTYPES = (torch.float32, torch.bfloat16)
# Window and compressed entries; every model has at most these two.
_MOST_SOURCES = 2
# Tasks that a step is cut into at least, so that one token keeps several threads busy.
_LEAST_TASKS = 4
_NO_MASK = np.zeros((0, 0), dtype=np.bool_)


def supports(query: torch.Tensor, sources: list[RowSource], sinks: torch.Tensor) -> bool:
    """Contiguous float32 or bfloat16 queries and caches of their dtype with unit row stride."""
    return (
        query.dtype in _DTYPES
        and query.is_contiguous()
        and query.numel() > 0
        and sinks.dtype == torch.float32
        and sinks.is_contiguous()
        and 0 < sum(source.width > 0 for source in sources) <= _MOST_SOURCES
        and all(
            source.rotary is None
            and source.cache.dtype == query.dtype
            and source.cache.shape[-1] == query.shape[-1]
            and source.cache.stride(-1) == 1
            for source in sources
        )
    )


def sparse_attention(
    query: torch.Tensor, sources: list[RowSource], sinks: torch.Tensor, scale: float
) -> torch.Tensor:
    """See :func:`ascend_attention.ops.sparse_attention.sparse_attention`."""
    out = torch.empty_like(query)
    used = [_arrays(source) for source in sources if source.width]
    # A source is given twice where there is only one, the second time with a width of 0.
    first, second = used[0], used[-1]
    second_width = second[1].shape[1] if len(used) > 1 else 0
    _attend(
        as_numpy(query), *first, *second, second_width, as_numpy(sinks), np.float32(scale),
        as_numpy(out),
    )  # fmt: skip
    return out


def _arrays(source: RowSource) -> tuple[Any, ...]:
    """Cache as flat memory, blocks, offsets, mask, and both strides of the cache."""
    cache = source.cache
    blocks, rows, width = cache.shape
    over_blocks, over_rows, _ = cache.stride()
    # A flat view, since numba does not vectorise over arrays of unknown strides.
    span = (blocks - 1) * over_blocks + (rows - 1) * over_rows + width
    flat = cache.as_strided((span,), (1,))
    valid = _NO_MASK if source.valid is None else as_numpy(source.valid.contiguous())
    block, offset = (as_numpy(part.contiguous()) for part in source.index)
    return as_numpy(flat), block, offset, valid, over_blocks, over_rows


@njit(cache=True)
def row_starts(block, offset, valid, over_blocks, over_rows, t, width, out, count):  # type: ignore[no-untyped-def]
    """Append where the valid rows of token ``t`` start in flat memory; return how many."""
    masked = valid.shape[0] > 0
    for i in range(width):
        if block[t, i] >= 0 and offset[t, i] >= 0 and (not masked or valid[t, i]):
            out[count] = block[t, i] * over_blocks + offset[t, i] * over_rows
            count += 1
    return count


@njit(fastmath=FASTMATH, cache=True)
def attend_head(q, rows, count, sink, scale, weights, acc):  # type: ignore[no-untyped-def]
    """Fill ``acc [D]`` with one head's attention over ``rows [count, D]``, all float32."""
    width = q.shape[0]
    top = sink
    r = 0
    # Four rows share each pass over the query.
    while r + 4 <= count:
        r0, r1, r2, r3 = rows[r], rows[r + 1], rows[r + 2], rows[r + 3]
        a0 = np.float32(0)
        a1 = np.float32(0)
        a2 = np.float32(0)
        a3 = np.float32(0)
        for d in range(width):
            v = q[d]
            a0 += v * r0[d]
            a1 += v * r1[d]
            a2 += v * r2[d]
            a3 += v * r3[d]
        weights[r] = a0 * scale
        weights[r + 1] = a1 * scale
        weights[r + 2] = a2 * scale
        weights[r + 3] = a3 * scale
        r += 4
    while r < count:
        row = rows[r]
        a0 = np.float32(0)
        for d in range(width):
            a0 += q[d] * row[d]
        weights[r] = a0 * scale
        r += 1
    for r in range(count):
        top = max(top, weights[r])
    total = np.float32(0)
    for r in range(count):
        weights[r] = exp_f32(weights[r] - top)
        total += weights[r]
    total += exp_f32(sink - top)
    for d in range(width):
        acc[d] = np.float32(0)
    r = 0
    while r + 4 <= count:
        r0, r1, r2, r3 = rows[r], rows[r + 1], rows[r + 2], rows[r + 3]
        w0, w1, w2, w3 = weights[r], weights[r + 1], weights[r + 2], weights[r + 3]
        for d in range(width):
            acc[d] += w0 * r0[d] + w1 * r1[d] + w2 * r2[d] + w3 * r3[d]
        r += 4
    while r < count:
        row = rows[r]
        w0 = weights[r]
        for d in range(width):
            acc[d] += w0 * row[d]
        r += 1
    for d in range(width):
        acc[d] /= total


@njit(fastmath=FASTMATH, parallel=True, cache=True)
def _attend(  # type: ignore[no-untyped-def]
    query, flat0, block0, offset0, valid0, over_blocks0, over_rows0,
    flat1, block1, offset1, valid1, over_blocks1, over_rows1, width1, sinks, scale, out,
):  # fmt: skip
    tokens, heads, width = query.shape
    width0 = block0.shape[1]
    parts = min(heads, (_LEAST_TASKS + tokens - 1) // tokens)
    for task in prange(tokens * parts):
        t = task // parts
        part = task - t * parts
        start = np.empty(width0 + width1, dtype=np.int64)
        count0 = row_starts(block0, offset0, valid0, over_blocks0, over_rows0, t, width0, start, 0)
        count = row_starts(
            block1, offset1, valid1, over_blocks1, over_rows1, t, width1, start, count0
        )
        rows = np.empty((count, width), dtype=np.float32)
        for r in range(count0):
            source = flat0[start[r] : start[r] + width]
            target = rows[r]
            for d in range(width):
                target[d] = widen(source[d])
        for r in range(count0, count):
            source = flat1[start[r] : start[r] + width]
            target = rows[r]
            for d in range(width):
                target[d] = widen(source[d])
        weights = np.empty(count, dtype=np.float32)
        wide = np.empty(width, dtype=np.float32)
        acc = np.empty(width, dtype=np.float32)
        for h in range(part * heads // parts, (part + 1) * heads // parts):
            for d in range(width):
                wide[d] = widen(query[t, h, d])
            attend_head(wide, rows, count, sinks[h], scale, weights, acc)
            for d in range(width):
                out[t, h, d] = narrow(out, acc[d])
