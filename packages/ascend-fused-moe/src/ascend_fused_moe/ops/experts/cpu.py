"""Routed experts for a CPU with few tokens.

Decode is bound by reading the weights of the experts that were hit: each is read once, whatever
the number of tokens that chose it, and all experts share two parallel regions.
"""

from __future__ import annotations

import numpy as np
import torch
from ascend_ops_core.cpu_numeric import FASTMATH, as_numpy, bf16_to_f32, f32_to_bf16
from ascend_ops_core.ops.activation.cpu import swiglu_value
from numba import njit, prange

from ascend_fused_moe.ops.experts import reference

# Above this many (token, expert) pairs per expert a GEMM per expert is faster.
_FEW_PAIRS_PER_EXPERT = 4
_FEW_TOKENS = 16
_ROWS_PER_TASK = 32


def supports(x: torch.Tensor, w13: torch.Tensor, w2: torch.Tensor) -> bool:
    """Contiguous float32 or bfloat16 weights of the tokens' dtype."""
    return (
        x.dtype in (torch.float32, torch.bfloat16)
        and x.dtype == w13.dtype == w2.dtype
        and w13.is_contiguous()
        and w2.is_contiguous()
    )


def fused_experts(
    x: torch.Tensor,
    w13: torch.Tensor,
    w2: torch.Tensor,
    weights: torch.Tensor,
    ids: torch.Tensor,
    swiglu_limit: float | None,
) -> torch.Tensor:
    """See :func:`ascend_fused_moe.ops.experts.fused_experts`."""
    pairs = ids.numel()
    if x.shape[0] > _FEW_TOKENS and pairs > _FEW_PAIRS_PER_EXPERT * w13.shape[0]:
        return reference.fused_experts(x, w13, w2, weights, ids, swiglu_limit)
    ids_np = as_numpy(ids.to(torch.int64).contiguous()).reshape(-1)
    order, experts, starts = _group(ids_np, w13.shape[0])
    hidden = np.empty((pairs, w2.shape[2]), dtype=np.float32)
    out = torch.empty_like(x)
    wide = as_numpy(x.float().contiguous())
    limit = np.float32(swiglu_limit) if swiglu_limit else np.float32(np.inf)
    flat_weights = as_numpy(weights.float().contiguous()).reshape(-1)
    up, down = (_up_bf16, _down_bf16) if x.dtype == torch.bfloat16 else (_up_f32, _down_f32)
    up(wide, as_numpy(w13), order, experts, starts, ids.shape[1], limit, hidden)
    down(hidden, as_numpy(w2), order, experts, starts, ids.shape[1], flat_weights, as_numpy(out))
    return out


@njit(cache=True)
def _group(ids, num_experts):  # type: ignore[no-untyped-def]
    """Sort pairs by expert; return the order, the experts hit and where each one starts."""
    counts = np.zeros(num_experts + 1, dtype=np.int64)
    for i in range(ids.shape[0]):
        counts[ids[i] + 1] += 1
    hit = 0
    for e in range(num_experts):
        if counts[e + 1] > 0:
            hit += 1
        counts[e + 1] += counts[e]
    experts = np.empty(hit, dtype=np.int64)
    starts = np.empty(hit + 1, dtype=np.int64)
    j = 0
    for e in range(num_experts):
        if counts[e + 1] > counts[e]:
            experts[j] = e
            starts[j] = counts[e]
            j += 1
    starts[hit] = ids.shape[0]
    order = np.empty(ids.shape[0], dtype=np.int64)
    for i in range(ids.shape[0]):
        e = ids[i]
        order[counts[e]] = i
        counts[e] += 1
    return order, experts, starts


@njit(fastmath=FASTMATH, parallel=True, cache=True)
def _up_f32(x, w13, order, experts, starts, top_k, limit, hidden):  # type: ignore[no-untyped-def]
    inter = hidden.shape[1]
    width = x.shape[1]
    chunks = (inter + _ROWS_PER_TASK - 1) // _ROWS_PER_TASK
    for task in prange(experts.shape[0] * chunks):
        j = task // chunks
        first = (task - j * chunks) * _ROWS_PER_TASK
        e = experts[j]
        for i in range(first, min(inter, first + _ROWS_PER_TASK)):
            gate_row = w13[e, i]
            up_row = w13[e, inter + i]
            p = starts[j]
            # Two tokens share each pass over the weights.
            while p + 2 <= starts[j + 1]:
                xa = x[order[p] // top_k]
                xb = x[order[p + 1] // top_k]
                ga = np.float32(0)
                ua = np.float32(0)
                gb = np.float32(0)
                ub = np.float32(0)
                for k in range(width):
                    g = gate_row[k]
                    u = up_row[k]
                    ga += xa[k] * g
                    ua += xa[k] * u
                    gb += xb[k] * g
                    ub += xb[k] * u
                hidden[p, i] = swiglu_value(ga, ua, limit)
                hidden[p + 1, i] = swiglu_value(gb, ub, limit)
                p += 2
            if p < starts[j + 1]:
                xa = x[order[p] // top_k]
                ga = np.float32(0)
                ua = np.float32(0)
                for k in range(width):
                    ga += xa[k] * gate_row[k]
                    ua += xa[k] * up_row[k]
                hidden[p, i] = swiglu_value(ga, ua, limit)


@njit(fastmath=FASTMATH, parallel=True, cache=True)
def _up_bf16(x, w13, order, experts, starts, top_k, limit, hidden):  # type: ignore[no-untyped-def]
    inter = hidden.shape[1]
    width = x.shape[1]
    chunks = (inter + _ROWS_PER_TASK - 1) // _ROWS_PER_TASK
    for task in prange(experts.shape[0] * chunks):
        j = task // chunks
        first = (task - j * chunks) * _ROWS_PER_TASK
        e = experts[j]
        for i in range(first, min(inter, first + _ROWS_PER_TASK)):
            gate_row = w13[e, i]
            up_row = w13[e, inter + i]
            p = starts[j]
            # Two tokens share each pass over the weights.
            while p + 2 <= starts[j + 1]:
                xa = x[order[p] // top_k]
                xb = x[order[p + 1] // top_k]
                ga = np.float32(0)
                ua = np.float32(0)
                gb = np.float32(0)
                ub = np.float32(0)
                for k in range(width):
                    g = bf16_to_f32(gate_row[k])
                    u = bf16_to_f32(up_row[k])
                    ga += xa[k] * g
                    ua += xa[k] * u
                    gb += xb[k] * g
                    ub += xb[k] * u
                hidden[p, i] = swiglu_value(ga, ua, limit)
                hidden[p + 1, i] = swiglu_value(gb, ub, limit)
                p += 2
            if p < starts[j + 1]:
                xa = x[order[p] // top_k]
                ga = np.float32(0)
                ua = np.float32(0)
                for k in range(width):
                    ga += xa[k] * bf16_to_f32(gate_row[k])
                    ua += xa[k] * bf16_to_f32(up_row[k])
                hidden[p, i] = swiglu_value(ga, ua, limit)


@njit(fastmath=FASTMATH, parallel=True, cache=True)
def _down_f32(  # type: ignore[no-untyped-def]
    hidden, w2, order, experts, starts, top_k, weights, out
):
    width = w2.shape[1]
    inter = hidden.shape[1]
    tokens = out.shape[0]
    for task in prange((width + _ROWS_PER_TASK - 1) // _ROWS_PER_TASK):
        first = task * _ROWS_PER_TASK
        last = min(width, first + _ROWS_PER_TASK)
        for t in range(tokens):
            for d in range(first, last):
                out[t, d] = np.float32(0)
        for j in range(experts.shape[0]):
            e = experts[j]
            for d in range(first, last):
                row = w2[e, d]
                p = starts[j]
                while p + 2 <= starts[j + 1]:
                    ha = hidden[p]
                    hb = hidden[p + 1]
                    a = np.float32(0)
                    b = np.float32(0)
                    for i in range(inter):
                        v = row[i]
                        a += ha[i] * v
                        b += hb[i] * v
                    out[order[p] // top_k, d] += a * weights[order[p]]
                    out[order[p + 1] // top_k, d] += b * weights[order[p + 1]]
                    p += 2
                if p < starts[j + 1]:
                    ha = hidden[p]
                    a = np.float32(0)
                    for i in range(inter):
                        a += ha[i] * row[i]
                    out[order[p] // top_k, d] += a * weights[order[p]]


@njit(fastmath=FASTMATH, parallel=True, cache=True)
def _down_bf16(  # type: ignore[no-untyped-def]
    hidden, w2, order, experts, starts, top_k, weights, out
):
    width = w2.shape[1]
    inter = hidden.shape[1]
    tokens = out.shape[0]
    for task in prange((width + _ROWS_PER_TASK - 1) // _ROWS_PER_TASK):
        first = task * _ROWS_PER_TASK
        last = min(width, first + _ROWS_PER_TASK)
        sums = np.zeros((tokens, last - first), dtype=np.float32)
        for j in range(experts.shape[0]):
            e = experts[j]
            for d in range(first, last):
                row = w2[e, d]
                p = starts[j]
                while p + 2 <= starts[j + 1]:
                    ha = hidden[p]
                    hb = hidden[p + 1]
                    a = np.float32(0)
                    b = np.float32(0)
                    for i in range(inter):
                        v = bf16_to_f32(row[i])
                        a += ha[i] * v
                        b += hb[i] * v
                    sums[order[p] // top_k, d - first] += a * weights[order[p]]
                    sums[order[p + 1] // top_k, d - first] += b * weights[order[p + 1]]
                    p += 2
                if p < starts[j + 1]:
                    ha = hidden[p]
                    a = np.float32(0)
                    for i in range(inter):
                        a += ha[i] * bf16_to_f32(row[i])
                    sums[order[p] // top_k, d - first] += a * weights[order[p]]
        for t in range(tokens):
            for d in range(first, last):
                out[t, d] = f32_to_bf16(sums[t, d - first])
