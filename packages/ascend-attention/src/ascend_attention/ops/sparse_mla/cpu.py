"""Sparse MLA for a CPU: rows are read where they lie, once for all heads of a task."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from ascend_ops_core.cpu_apart import apart
from ascend_ops_core.cpu_numeric import FASTMATH, as_numpy, exp_f32, narrow, widen
from ascend_ops_core.cpu_tiles import aligned_rows, tiled_product
from numba import njit, prange

from ascend_attention.ops.token_indexer import owners

_DTYPES = (torch.float32, torch.bfloat16)
# Tasks that a step is cut into at least, so that one query keeps several threads busy.
_LEAST_TASKS = 4


def supports(
    query_latent: torch.Tensor,
    query_rope: torch.Tensor,
    latent_cache: torch.Tensor,
    rope_cache: torch.Tensor,
) -> bool:
    """Float32 or bfloat16 queries, caches of their dtype with unit row stride."""
    return (
        query_latent.dtype in _DTYPES
        and query_latent.numel() > 0
        and latent_cache.numel() > 0
        and all(
            one.dtype == query_latent.dtype and one.stride(-1) == 1
            for one in (query_latent, query_rope, latent_cache, rope_cache)
        )
    )


def sparse_mla(
    query_latent: torch.Tensor,
    query_rope: torch.Tensor,
    latent_cache: torch.Tensor,
    rope_cache: torch.Tensor,
    selected: torch.Tensor,
    block_table: torch.Tensor,
    query_ends: torch.Tensor,
    seq_lens: torch.Tensor,
    scale: float,
) -> torch.Tensor:
    """See :func:`ascend_attention.ops.sparse_mla.sparse_mla`."""
    out = torch.empty(query_latent.shape, dtype=query_latent.dtype)
    request, seen = owners(query_ends, seq_lens, query_latent.shape[0])
    _attend(
        as_numpy(query_latent),
        as_numpy(query_rope),
        *_flat(latent_cache),
        *_flat(rope_cache),
        latent_cache.shape[1],
        as_numpy(selected),
        as_numpy(block_table),
        as_numpy(request),
        as_numpy(seen),
        np.float32(scale),
        as_numpy(out),
    )
    return out


def _flat(cache: torch.Tensor) -> tuple[Any, int, int]:
    """Cache as flat memory, since numba does not vectorise over unknown strides; both strides."""
    blocks, rows, width = cache.shape
    over_blocks, over_rows, _ = cache.stride()
    span = (blocks - 1) * over_blocks + (rows - 1) * over_rows + width
    return as_numpy(cache.as_strided((span,), (1,))), over_blocks, over_rows


@njit(fastmath=FASTMATH, cache=True)
def _weighted_by_four(weights, h, rows, count, sums):  # type: ignore[no-untyped-def]
    """Sums of rows for four heads from ``h`` on, which share each pass over four rows."""
    s0, s1, s2, s3 = sums[h], sums[h + 1], sums[h + 2], sums[h + 3]
    w0, w1, w2, w3 = weights[h], weights[h + 1], weights[h + 2], weights[h + 3]
    width = s0.shape[0]
    r = 0
    while r + 4 <= count:
        r0, r1, r2, r3 = rows[r], rows[r + 1], rows[r + 2], rows[r + 3]
        a0, a1, a2, a3 = w0[r], w0[r + 1], w0[r + 2], w0[r + 3]
        b0, b1, b2, b3 = w1[r], w1[r + 1], w1[r + 2], w1[r + 3]
        c0, c1, c2, c3 = w2[r], w2[r + 1], w2[r + 2], w2[r + 3]
        d0, d1, d2, d3 = w3[r], w3[r + 1], w3[r + 2], w3[r + 3]
        for d in range(width):
            v0, v1, v2, v3 = r0[d], r1[d], r2[d], r3[d]
            s0[d] += a0 * v0 + a1 * v1 + a2 * v2 + a3 * v3
            s1[d] += b0 * v0 + b1 * v1 + b2 * v2 + b3 * v3
            s2[d] += c0 * v0 + c1 * v1 + c2 * v2 + c3 * v3
            s3[d] += d0 * v0 + d1 * v1 + d2 * v2 + d3 * v3
        r += 4
    while r < count:
        row = rows[r]
        for d in range(width):
            s0[d] += w0[r] * row[d]
            s1[d] += w1[r] * row[d]
            s2[d] += w2[r] * row[d]
            s3[d] += w3[r] * row[d]
        r += 1


@njit(fastmath=FASTMATH, cache=True)
def _weighted(weights, h, rows, count, sums):  # type: ignore[no-untyped-def]
    """The same for one head."""
    acc, of = sums[h], weights[h]
    width = acc.shape[0]
    r = 0
    while r + 4 <= count:
        r0, r1, r2, r3 = rows[r], rows[r + 1], rows[r + 2], rows[r + 3]
        w0, w1, w2, w3 = of[r], of[r + 1], of[r + 2], of[r + 3]
        for d in range(width):
            acc[d] += w0 * r0[d] + w1 * r1[d] + w2 * r2[d] + w3 * r3[d]
        r += 4
    while r < count:
        row = rows[r]
        w0 = of[r]
        for d in range(width):
            acc[d] += w0 * row[d]
        r += 1


@njit(fastmath=FASTMATH, cache=True)
def _softmax(weights, count, scale):  # type: ignore[no-untyped-def]
    """Replace logits by their softmax."""
    top = weights[0]
    for r in range(count):
        top = max(top, weights[r])
    total = np.float32(0)
    for r in range(count):
        weights[r] = exp_f32((weights[r] - top) * scale)
        total += weights[r]
    for r in range(count):
        weights[r] /= total


_add_four_heads, _add_head = apart(_weighted_by_four), apart(_weighted)


@njit(fastmath=FASTMATH, parallel=True, cache=True)
def _attend(  # type: ignore[no-untyped-def]
    latent, rope, flat, over_blocks, over_rows, rope_flat, rope_over_blocks, rope_over_rows,
    page, selected, table, request, seen, scale, out,
):  # fmt: skip
    tokens, heads, width = latent.shape
    turned = rope.shape[2]
    places = selected.shape[1]
    parts = min(heads, (_LEAST_TASKS + tokens - 1) // tokens)
    for task in prange(tokens * parts):
        t = task // parts
        part = task - t * parts
        count = 0
        if seen[t] > 0:
            while count < places and selected[t, count] >= 0:
                count += 1
        rows = np.empty((count, width + turned), dtype=np.float32)
        for r in range(count):
            s = selected[t, r]
            column = s // page
            block = np.int64(table[request[t], column])
            start = block * over_blocks + (s - column * page) * over_rows
            source = flat[start : start + width]
            row = rows[r]
            for d in range(width):
                row[d] = widen(source[d])
            start = block * rope_over_blocks + (s - column * page) * rope_over_rows
            source = rope_flat[start : start + turned]
            for d in range(turned):
                row[width + d] = widen(source[d])
        first = part * heads // parts
        held = (part + 1) * heads // parts - first
        query = aligned_rows(held, width + turned)
        for h in range(held):
            one = query[h]
            for d in range(width):
                one[d] = widen(latent[t, first + h, d])
            for d in range(turned):
                one[width + d] = widen(rope[t, first + h, d])
        weights = np.empty((held, count), dtype=np.float32)
        sums = np.zeros((held, width), dtype=np.float32)
        if count > 0:
            tiled_product(query, 0, held, rows, 0, count, weights, 0)
            for h in range(held):
                _softmax(weights[h], count, scale)
            h = 0
            while h + 4 <= held:
                _add_four_heads(weights, h, rows, count, sums)
                h += 4
            while h < held:
                _add_head(weights, h, rows, count, sums)
                h += 1
        for h in range(held):
            for d in range(width):
                out[t, first + h, d] = narrow(out, sums[h, d])
