"""Prologue and epilogue for a CPU with few tokens: two parallel regions each, no copies between."""

from __future__ import annotations

import numpy as np
import torch
from ascend_ops_core.cpu_numeric import FASTMATH, as_numpy, narrow, widen
from ascend_ops_core.cpu_products import ROWS_PER_TASK, product, widen_rows
from numba import njit, prange

from ascend_attention.ops.mla.prologue import Prologue

# With more tokens the products are GEMMs.
_FEW_TOKENS = 16


def supports(
    tokens: torch.Tensor, wide: tuple[torch.Tensor, ...], narrow: tuple[torch.Tensor, ...]
) -> bool:
    """A few tokens; everything contiguous, ``wide`` in the model's dtype, ``narrow`` float32."""
    return (
        0 < tokens.shape[0] <= _FEW_TOKENS
        and tokens.dtype in (torch.float32, torch.bfloat16)
        and all(x.dtype == tokens.dtype and x.is_contiguous() for x in wide)
        and all(x.dtype == torch.float32 and x.is_contiguous() for x in narrow)
    )


def mla_prologue(
    hidden: torch.Tensor,
    wqa_wkv: torch.Tensor,
    wq_b: torch.Tensor,
    q_norm: torch.Tensor,
    kv_norm: torch.Tensor,
    eps: float,
    cos: torch.Tensor,
    sin: torch.Tensor,
) -> Prologue:
    """See :func:`ascend_attention.ops.mla.mla_prologue`."""
    tokens, width = hidden.shape[0], kv_norm.shape[0]
    latent = hidden.new_empty((tokens, q_norm.shape[0]))
    query = hidden.new_empty((tokens, wq_b.shape[0] // width, width))
    kv = hidden.new_empty((tokens, width))
    prologue_few(
        as_numpy(hidden),
        as_numpy(wqa_wkv),
        as_numpy(wq_b),
        as_numpy(q_norm),
        as_numpy(kv_norm),
        np.float32(eps),
        as_numpy(cos),
        as_numpy(sin),
        as_numpy(latent),
        as_numpy(query),
        as_numpy(kv),
    )
    return Prologue(latent, query, kv)


def mla_epilogue(
    attended: torch.Tensor,
    wo_a: torch.Tensor,
    wo_b: torch.Tensor,
    cos: torch.Tensor,
    sin: torch.Tensor,
) -> torch.Tensor:
    """See :func:`ascend_attention.ops.mla.mla_epilogue`."""
    out = attended.new_empty((attended.shape[0], wo_b.shape[0]))
    epilogue_few(
        as_numpy(attended),
        as_numpy(wo_a),
        as_numpy(wo_b),
        as_numpy(cos),
        as_numpy(sin),
        as_numpy(out),
    )
    return out


@njit(fastmath=FASTMATH, cache=True)
def _scale_of(row, eps):  # type: ignore[no-untyped-def]
    total = np.float32(0)
    for d in range(row.shape[0]):
        total += row[d] * row[d]
    return np.float32(1) / np.sqrt(total / np.float32(row.shape[0]) + eps)


@njit(fastmath=FASTMATH, cache=True)
def rotate(row, cos, sin, sign):  # type: ignore[no-untyped-def]
    """Rotate the last channels of a float32 row in place."""
    first = row.shape[0] - 2 * cos.shape[0]
    for p in range(cos.shape[0]):
        a = row[first + 2 * p]
        b = row[first + 2 * p + 1]
        s = sin[p] * sign
        row[first + 2 * p] = a * cos[p] - b * s
        row[first + 2 * p + 1] = b * cos[p] + a * s


@njit(fastmath=FASTMATH, parallel=True, cache=True)
def prologue_few(  # type: ignore[no-untyped-def]
    hidden, wqa_wkv, wq_b, q_norm, kv_norm, eps, cos, sin, latent, query, kv
):
    tokens = hidden.shape[0]
    rank, width = q_norm.shape[0], kv_norm.shape[0]
    wide = np.empty(hidden.shape, dtype=np.float32)
    widen_rows(hidden, wide)
    down = np.empty((tokens, rank + width), dtype=np.float32)
    for task in prange((rank + width + ROWS_PER_TASK - 1) // ROWS_PER_TASK):
        first = task * ROWS_PER_TASK
        last = min(rank + width, first + ROWS_PER_TASK)
        product(wide, 0, tokens, wqa_wkv, first, last, down, first)
    normed = np.empty((tokens, rank), dtype=np.float32)
    for t in range(tokens):
        row = down[t, :rank]
        scale = _scale_of(row, eps)
        for d in range(rank):
            latent[t, d] = narrow(latent, row[d] * scale * q_norm[d])
            normed[t, d] = widen(latent[t, d])
        row = down[t, rank:]
        scale = _scale_of(row, eps)
        for d in range(width):
            row[d] = row[d] * scale * kv_norm[d]
        rotate(row, cos[t], sin[t], np.float32(1))
        for d in range(width):
            kv[t, d] = narrow(kv, row[d])
    for h in prange(query.shape[1]):
        part = np.empty((tokens, width), dtype=np.float32)
        product(normed, 0, tokens, wq_b, h * width, (h + 1) * width, part, 0)
        for t in range(tokens):
            head = part[t]
            factor = _scale_of(head, eps)
            for d in range(width):
                head[d] = head[d] * factor
            rotate(head, cos[t], sin[t], np.float32(1))
            for d in range(width):
                query[t, h, d] = narrow(query, head[d])


@njit(fastmath=FASTMATH, parallel=True, cache=True)
def epilogue_few(attended, wo_a, wo_b, cos, sin, out):  # type: ignore[no-untyped-def]
    tokens, heads, width = attended.shape
    groups, rank, group_width = wo_a.shape
    # Rows of one group side by side, so that every product reads contiguous tokens.
    plain = np.empty((groups, tokens, group_width), dtype=np.float32)
    per_group = heads // groups
    for t in range(tokens):
        for h in range(heads):
            start = (h % per_group) * width
            row = plain[h // per_group, t, start : start + width]
            for d in range(width):
                row[d] = widen(attended[t, h, d])
            rotate(row, cos[t], sin[t], np.float32(-1))
    latent = np.empty((tokens, groups * rank), dtype=np.float32)
    strips = (rank + ROWS_PER_TASK - 1) // ROWS_PER_TASK
    for task in prange(groups * strips):
        g = task // strips
        first = (task - g * strips) * ROWS_PER_TASK
        last = min(rank, first + ROWS_PER_TASK)
        product(plain[g], 0, tokens, wo_a[g], first, last, latent, g * rank + first)
    rows = wo_b.shape[0]
    for task in prange((rows + ROWS_PER_TASK - 1) // ROWS_PER_TASK):
        first = task * ROWS_PER_TASK
        product(latent, 0, tokens, wo_b, first, min(rows, first + ROWS_PER_TASK), out, first)
