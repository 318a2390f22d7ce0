"""Sparse MLA for a CPU: rows are read where they lie, once for all heads of a task."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from ascend_ops_core.cpu_numeric import FASTMATH, as_numpy, exp_f32, narrow, widen
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
def _logits(q, rows, count, weights, more):  # type: ignore[no-untyped-def]
    """Dot products of one head with rows; added to ``weights`` where ``more``."""
    width = q.shape[0]
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
        if more:
            a0 += weights[r]
            a1 += weights[r + 1]
            a2 += weights[r + 2]
            a3 += weights[r + 3]
        weights[r] = a0
        weights[r + 1] = a1
        weights[r + 2] = a2
        weights[r + 3] = a3
        r += 4
    while r < count:
        row = rows[r]
        a0 = weights[r] if more else np.float32(0)
        for d in range(width):
            a0 += q[d] * row[d]
        weights[r] = a0
        r += 1


@njit(fastmath=FASTMATH, cache=True)
def _weighted(weights, rows, count, acc):  # type: ignore[no-untyped-def]
    """Sum of rows, each times its weight."""
    width = acc.shape[0]
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
        rows = np.empty((count, width), dtype=np.float32)
        rope_rows = np.empty((count, turned), dtype=np.float32)
        for r in range(count):
            s = selected[t, r]
            column = s // page
            block = np.int64(table[request[t], column])
            start = block * over_blocks + (s - column * page) * over_rows
            source = flat[start : start + width]
            for d in range(width):
                rows[r, d] = widen(source[d])
            start = block * rope_over_blocks + (s - column * page) * rope_over_rows
            source = rope_flat[start : start + turned]
            for d in range(turned):
                rope_rows[r, d] = widen(source[d])
        weights = np.empty(count, dtype=np.float32)
        wide = np.empty(width, dtype=np.float32)
        wide_rope = np.empty(turned, dtype=np.float32)
        acc = np.zeros(width, dtype=np.float32)
        for h in range(part * heads // parts, (part + 1) * heads // parts):
            if count > 0:
                for d in range(width):
                    wide[d] = widen(latent[t, h, d])
                for d in range(turned):
                    wide_rope[d] = widen(rope[t, h, d])
                _logits(wide, rows, count, weights, False)
                _logits(wide_rope, rope_rows, count, weights, True)
                _softmax(weights, count, scale)
                _weighted(weights, rows, count, acc)
            for d in range(width):
                out[t, h, d] = narrow(out, acc[d])
