"""Routed experts for a CPU with few tokens.

Decode is bound by reading the weights of the experts that were hit: each is read once, whatever
the number of tokens that chose it, and all experts, the shared one included, share two parallel
regions.
"""

from __future__ import annotations

import numpy as np
import torch
from ascend_ops_core.cpu_numeric import FASTMATH, as_numpy, narrow
from ascend_ops_core.cpu_products import ROWS_PER_TASK, product, widen_rows
from ascend_ops_core.ops.activation.cpu import swiglu_value
from numba import njit, prange

from ascend_fused_moe.ops.experts import reference

# Above this many (token, expert) pairs per expert a GEMM per expert is faster.
_FEW_PAIRS_PER_EXPERT = 4
_FEW_TOKENS = 16


def supports(x: torch.Tensor, *weights: torch.Tensor | None) -> bool:
    """Contiguous float32 or bfloat16 weights of the tokens' dtype, of which some may be None."""
    return x.dtype in (torch.float32, torch.bfloat16) and all(
        weight is None or (weight.dtype == x.dtype and weight.is_contiguous()) for weight in weights
    )


def fused_experts(
    x: torch.Tensor,
    w13: torch.Tensor,
    w2: torch.Tensor,
    weights: torch.Tensor,
    ids: torch.Tensor,
    swiglu_limit: float | None,
    shared_w13: torch.Tensor | None,
    shared_w2: torch.Tensor | None,
) -> torch.Tensor:
    """See :func:`ascend_fused_moe.ops.experts.fused_experts`."""
    if x.shape[0] > _FEW_TOKENS and ids.numel() > _FEW_PAIRS_PER_EXPERT * w13.shape[0]:
        return reference.fused_experts(
            x, w13, w2, weights, ids, swiglu_limit, shared_w13, shared_w2
        )
    out = torch.empty_like(x)
    limit = np.float32(swiglu_limit) if swiglu_limit else np.float32(np.inf)
    if shared_w13 is None or shared_w2 is None:
        shared_w13, shared_w2 = w13[0, :0], w2[0, :, :0]
    experts_few(
        as_numpy(x.contiguous()),
        as_numpy(w13),
        as_numpy(w2),
        as_numpy(shared_w13),
        as_numpy(shared_w2.contiguous()),
        as_numpy(weights.float().contiguous()),
        as_numpy(ids.long().contiguous()),
        limit,
        as_numpy(out),
    )
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


@njit(fastmath=FASTMATH, cache=True)
def _up(x, t0, t1, w13, first, last, limit, hidden):  # type: ignore[no-untyped-def]
    """Fill columns ``first`` to ``last`` of the activations of some tokens of one expert."""
    inter = w13.shape[0] // 2
    width = last - first
    gate_up = np.empty((t1 - t0, 2 * width), dtype=np.float32)
    product(x, t0, t1, w13, first, last, gate_up, 0)
    product(x, t0, t1, w13, inter + first, inter + last, gate_up, width)
    for r in range(t1 - t0):
        row = gate_up[r]
        target = hidden[t0 + r]
        for i in range(width):
            target[first + i] = swiglu_value(row[i], row[width + i], limit)


@njit(fastmath=FASTMATH, parallel=True, cache=True)
def experts_few(x, w13, w2, shared13, shared2, weights, ids, limit, out):  # type: ignore[no-untyped-def]
    tokens, width = x.shape
    top_k = ids.shape[1]
    inter, shared_inter = w2.shape[2], shared2.shape[1]
    flat = ids.reshape(-1)
    order, experts, starts = _group(flat, w13.shape[0])
    wide = np.empty((tokens, width), dtype=np.float32)
    widen_rows(x, wide)
    # Tokens of one expert side by side.
    grouped = np.empty((flat.shape[0], width), dtype=np.float32)
    for p in range(flat.shape[0]):
        source = wide[order[p] // top_k]
        target = grouped[p]
        for k in range(width):
            target[k] = source[k]
    hidden = np.empty((flat.shape[0], inter), dtype=np.float32)
    shared_hidden = np.empty((tokens, shared_inter), dtype=np.float32)
    strips = (inter + ROWS_PER_TASK - 1) // ROWS_PER_TASK
    routed_tasks = experts.shape[0] * strips
    shared_tasks = (shared_inter + ROWS_PER_TASK - 1) // ROWS_PER_TASK
    for task in prange(routed_tasks + shared_tasks):
        if task < routed_tasks:
            j = task // strips
            first = (task - j * strips) * ROWS_PER_TASK
            last = min(inter, first + ROWS_PER_TASK)
            _up(grouped, starts[j], starts[j + 1], w13[experts[j]], first, last, limit, hidden)
        else:
            first = (task - routed_tasks) * ROWS_PER_TASK
            last = min(shared_inter, first + ROWS_PER_TASK)
            _up(wide, 0, tokens, shared13, first, last, limit, shared_hidden)
    for task in prange((width + ROWS_PER_TASK - 1) // ROWS_PER_TASK):
        first = task * ROWS_PER_TASK
        last = min(width, first + ROWS_PER_TASK)
        sums = np.zeros((tokens, last - first), dtype=np.float32)
        if shared_inter > 0:
            product(shared_hidden, 0, tokens, shared2, first, last, sums, 0)
        part = np.empty((tokens, last - first), dtype=np.float32)
        for j in range(experts.shape[0]):
            begin, end = starts[j], starts[j + 1]
            # A token may name an expert more than once.
            for t0 in range(begin, end, tokens):
                t1 = min(end, t0 + tokens)
                product(hidden, t0, t1, w2[experts[j]], first, last, part, 0)
                for p in range(t0, t1):
                    pair = order[p]
                    token = pair // top_k
                    weight = weights[token, pair - token * top_k]
                    for d in range(last - first):
                        sums[token, d] += weight * part[p - t0, d]
        for t in range(tokens):
            for d in range(last - first):
                out[t, first + d] = narrow(out, sums[t, d])
