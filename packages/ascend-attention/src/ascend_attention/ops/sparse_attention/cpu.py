"""Sparse attention for a CPU: rows are read where they lie.

The definition gathers every token's rows into a padded copy first; a decode step spends more
time on that, and on a dozen small torch calls, than on the products. Here a token's rows are
gathered once. For the scores they are packed into panels, which heads that lie packed as well are
multiplied with; for the result the same rows are multiplied with the weights.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from ascend_ops_core.cpu_apart import apart
from ascend_ops_core.cpu_numeric import (
    FASTMATH,
    as_numpy,
    exp_f32,
    narrow,
    widen,
)
from ascend_ops_core.cpu_panels import (
    add_heads,
    pack_panel,
    pack_tile,
    packed_floats,
    panel_heads,
    panel_rows,
)
from ascend_ops_core.cpu_tasks import no_task_taken, take_task
from numba import njit, prange

from ascend_attention.ops.sparse_attention.source import RowSource

_DTYPES = (torch.float32, torch.bfloat16)
# Window and compressed entries; every model has at most these two.
_MOST_SOURCES = 2
# Tasks that a step is cut into at least, so that one token keeps several threads busy.
_LEAST_TASKS = 4
# More than there are threads; those that find no task left cost next to nothing.
_WORKERS = 128
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


@njit(fastmath=FASTMATH, cache=True)
def _softmax(scores, first, step, panels, count, sink, scale, tops, weights, place, held):  # type: ignore[no-untyped-def]
    """Fill the weights of a head; return what they are to be divided by.

    Args:
        scores: a panel's from ``first`` on, the next one's ``step`` behind; overwritten.
        first: see above.
        step: see above.
        panels: how many.
        count: rows, of which the last panel may have fewer.
        sink: of the head.
        scale: factor on scores.
        tops: ``[panel_rows()]`` float32, overwritten. The largest score is looked for lane by lane,
            since LLVM keeps the order of comparisons.
        weights: a row's lies at ``place``, the next one's ``held`` behind.
        place: see above.
        held: see above.
    """
    rows = panel_rows()
    for r in range(count - (panels - 1) * rows, rows):
        scores[first + (panels - 1) * step + r] = -np.inf
    for r in range(rows):
        tops[r] = -np.inf
    for p in range(panels):
        part = scores[first + p * step : first + p * step + rows]
        for r in range(rows):
            part[r] *= scale
            tops[r] = part[r] if part[r] > tops[r] else tops[r]
    top = sink
    for r in range(rows):
        top = max(top, tops[r])
    total = exp_f32(sink - top)
    for p in range(panels):
        part = scores[first + p * step : first + p * step + rows]
        for r in range(rows):
            part[r] = exp_f32(part[r] - top)
            total += part[r]
        for r in range(min(rows, count - p * rows)):
            weights[place + (p * rows + r) * held] = part[r]
    return total


@njit(fastmath=FASTMATH, cache=True)
def _attend_heads(query, rows, count, first, last, sinks, scale, scratch, out):  # type: ignore[no-untyped-def]
    """Fill ``out [first:last, D]`` with attention over the first ``count`` of ``rows``."""
    tiles, panel, scores, weights, acc, factors, every, numbers = scratch
    width = out.shape[1]
    held, of_panel = panel_heads(), panel_rows()
    size = held * of_panel
    panels = (count + of_panel - 1) // of_panel
    groups = (last - first + held - 1) // held
    flat = rows.reshape(-1)
    for tile in range(groups):
        head = first + tile * held
        at = tile * held * width
        pack_tile(query, every, head, min(held, last - head), held, tiles, at)
    scores[: groups * panels * size] = 0
    for p in range(panels):
        row = p * of_panel
        pack_panel(rows, row, min(of_panel, count - row), 0, width, numbers, panel)
        for tile in range(groups):
            at = (tile * panels + p) * size
            add_heads(tiles, tile * held * width, panel, 0, of_panel, width, scores, at)
    for tile in range(groups):
        head = first + tile * held
        here = min(held, last - head)
        for i in range(here):
            total = _softmax(
                scores, tile * panels * size + i * of_panel, size, panels, count, sinks[head + i],
                scale, acc, weights, tile * held * count + i, held,
            )  # fmt: skip
            factors[i] = np.float32(1) / total
        for begin in range(0, width, of_panel):
            acc[:size] = 0
            add_heads(weights, tile * held * count, flat, begin, rows.shape[1], count, acc, 0)
            for i in range(here):
                target = out[head + i]
                for d in range(min(of_panel, width - begin)):
                    target[begin + d] = narrow(out, acc[i * of_panel + d] * factors[i])


@njit(fastmath=FASTMATH, cache=True)
def _gather(flat, start, first, last, rows, width):  # type: ignore[no-untyped-def]
    for r in range(first, last):
        source = flat[start[r] : start[r] + width]
        target = rows[r]
        for d in range(width):
            target[d] = widen(source[d])


_attend_some_heads = apart(_attend_heads)


@njit(fastmath=FASTMATH, parallel=True, cache=True)
def _attend(  # type: ignore[no-untyped-def]
    query, flat0, block0, offset0, valid0, over_blocks0, over_rows0,
    flat1, block1, offset1, valid1, over_blocks1, over_rows1, width1, sinks, scale, out,
):  # fmt: skip
    """Fill ``out [T, h, D]``; of the second source ``width1`` rows of a token are read."""
    tokens, heads, width = query.shape
    width0 = block0.shape[1]
    most = width0 + width1
    parts = min((heads + panel_heads() - 1) // panel_heads(), (_LEAST_TASKS + tokens - 1) // tokens)
    tasks = tokens * parts
    taken = no_task_taken()
    for _ in prange(_WORKERS):
        task = take_task(taken)
        if task < tasks:
            of_panel = panel_rows()
            padded = heads + panel_heads()
            panels = (most + of_panel - 1) // of_panel
            stride = (width + of_panel - 1) // of_panel * of_panel
            start = np.empty(most, dtype=np.int64)
            rows = packed_floats(most * stride).reshape((most, stride))
            rows[:, width:] = 0
            scratch = (
                packed_floats(padded * width),
                packed_floats(width * of_panel),
                packed_floats(padded * panels * of_panel),
                packed_floats(padded * most),
                packed_floats(panel_heads() * of_panel),
                np.empty(panel_heads(), dtype=np.float32),
                np.arange(heads),
                np.empty(of_panel, dtype=np.int64),
            )
        while task < tasks:
            t = task // parts
            part = task - t * parts
            n = row_starts(block0, offset0, valid0, over_blocks0, over_rows0, t, width0, start, 0)
            count = row_starts(
                block1, offset1, valid1, over_blocks1, over_rows1, t, width1, start, n
            )
            _gather(flat0, start, 0, n, rows, width)
            _gather(flat1, start, n, count, rows, width)
            _attend_some_heads(
                query[t], rows, count, part * heads // parts, (part + 1) * heads // parts, sinks,
                scale, scratch, out[t],
            )  # fmt: skip
            task = take_task(taken)
