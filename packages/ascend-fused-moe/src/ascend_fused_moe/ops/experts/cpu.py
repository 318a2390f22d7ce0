"""Routed experts for a CPU.

Decode is bound by reading the weights of the experts that were hit: each is read once, whatever
the number of tokens that chose it, and all experts, the shared one included, share two parallel
regions. The same kernel serves many tokens; only where torch multiplies bfloat16 in hardware is a
product of torch per expert faster.
"""

from __future__ import annotations

import numpy as np
import torch
from ascend_ops_core.cpu_numeric import FASTMATH, as_numpy, narrow, widen
from ascend_ops_core.cpu_products import widen_rows
from ascend_ops_core.cpu_tiles import tiled_product
from ascend_ops_core.ops.activation.cpu import swiglu_value
from ascend_ops_core.ops.linear.cpu import native_bf16
from numba import njit, prange
from torch.nn import functional as F

# Mean (token, expert) pairs per expert from which torch's bfloat16 products are faster.
_NATIVE_PAIRS_PER_EXPERT = 24
# Tokens that are gathered at once, which bounds the copies of their rows.
_TOKENS_AT_ONCE = 1024
# With more tokens than this a task takes more weight rows, since reading tokens again costs more
# than uneven tasks.
_FEW_TOKENS = 32
_ROWS_PER_TASK, _MANY_ROWS_PER_TASK = 32, 64
_TOKENS_PER_PART = 32
# Between the rows of tokens, so that rows of a power of two do not share their places in a cache.
_PADDING = 16


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
    out = torch.empty_like(x, memory_format=torch.contiguous_format)
    limit = np.float32(swiglu_limit) if swiglu_limit else np.float32(np.inf)
    many = x.dtype == torch.bfloat16 and ids.numel() >= _NATIVE_PAIRS_PER_EXPERT * w13.shape[0]
    if many and native_bf16():
        _with_torch(x, w13, w2, weights, ids, swiglu_limit, shared_w13, shared_w2, out)
        return out
    if shared_w13 is None or shared_w2 is None:
        shared_w13, shared_w2 = w13[0, :0], w2[0, :, :0]
    shared = as_numpy(shared_w13), as_numpy(shared_w2.contiguous())
    wide_weights, long_ids = weights.float().contiguous(), ids.long().contiguous()
    given = x.contiguous()
    for start in range(0, x.shape[0], _TOKENS_AT_ONCE):
        part = slice(start, start + _TOKENS_AT_ONCE)
        experts_few(
            as_numpy(given[part]),
            as_numpy(w13),
            as_numpy(w2),
            *shared,
            as_numpy(wide_weights[part]),
            as_numpy(long_ids[part]),
            limit,
            as_numpy(out[part]),
        )
    return out


def _with_torch(
    x: torch.Tensor,
    w13: torch.Tensor,
    w2: torch.Tensor,
    weights: torch.Tensor,
    ids: torch.Tensor,
    swiglu_limit: float | None,
    shared_w13: torch.Tensor | None,
    shared_w2: torch.Tensor | None,
    out: torch.Tensor,
) -> None:
    """Fill ``out`` with torch's products, one pair of them per expert that was hit."""
    if shared_w13 is None or shared_w2 is None:
        added = x.new_empty((0, x.shape[1]))
    else:
        added = _swiglu(x @ shared_w13.T, swiglu_limit) @ shared_w2.T
    flat = ids.long().flatten().contiguous()
    order, experts, starts = _group(as_numpy(flat), w13.shape[0])
    tokens = torch.from_numpy(order // ids.shape[1])
    pairs = x.new_empty((flat.shape[0], x.shape[1]))
    bounds = starts.tolist()
    for expert, begin, end in zip(experts.tolist(), bounds[:-1], bounds[1:], strict=True):
        hidden = _swiglu(x[tokens[begin:end]] @ w13[expert].T, swiglu_limit)
        torch.mm(hidden, w2[expert].T, out=pairs[begin:end])
    _combine(
        as_numpy(pairs),
        order,
        as_numpy(weights.float().contiguous()),
        as_numpy(added),
        as_numpy(out),
    )


def _swiglu(gate_up: torch.Tensor, limit: float | None) -> torch.Tensor:
    # torch's own: its threads and numba's would wait for each other between two products.
    gate, up = gate_up.chunk(2, dim=-1)
    if limit:
        gate, up = gate.clamp(max=limit), up.clamp(-limit, limit)
    return F.silu(gate).mul_(up)


@njit(fastmath=FASTMATH, parallel=True, cache=True)
def _combine(pairs, order, weights, added, out):  # type: ignore[no-untyped-def]
    """``out[t]`` is the weighted sum of the token's pairs, and ``added[t]`` if there is one."""
    tokens, width = out.shape
    top_k = weights.shape[1]
    places = np.empty(order.shape[0], dtype=np.int64)
    for p in range(order.shape[0]):
        places[order[p]] = p
    for t in prange(tokens):
        sums = np.zeros(width, dtype=np.float32)
        if added.shape[0] > 0:
            for d in range(width):
                sums[d] = widen(added[t, d])
        for j in range(top_k):
            row = pairs[places[t * top_k + j]]
            weight = weights[t, j]
            for d in range(width):
                sums[d] += weight * widen(row[d])
        for d in range(width):
            out[t, d] = narrow(out, sums[d])


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
def _up(wide, order, top_k, t0, t1, w13, first, last, limit, hidden):  # type: ignore[no-untyped-def]
    """Fill columns ``first`` to ``last`` of the activations of some pairs of one expert."""
    inter, columns = w13.shape[0] // 2, w13.shape[1]
    width = last - first
    gate_up = np.empty((_TOKENS_PER_PART, 2 * width), dtype=np.float32)
    rows = np.empty((min(t1 - t0, _TOKENS_PER_PART), columns + _PADDING), dtype=np.float32)
    for begin in range(t0, t1, _TOKENS_PER_PART):
        count = min(t1 - begin, _TOKENS_PER_PART)
        for r in range(count):
            source = wide[order[begin + r] // top_k]
            for k in range(columns):
                rows[r, k] = source[k]
        tiled_product(rows, 0, count, w13, first, last, gate_up, 0)
        tiled_product(rows, 0, count, w13, inter + first, inter + last, gate_up, width)
        for r in range(count):
            row = gate_up[r]
            target = hidden[begin + r]
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
    every = np.arange(tokens)
    hidden = np.empty((flat.shape[0], inter + _PADDING), dtype=np.float32)
    shared_hidden = np.empty((tokens, shared_inter), dtype=np.float32)
    rows = _ROWS_PER_TASK if tokens <= _FEW_TOKENS else _MANY_ROWS_PER_TASK
    strips = (inter + rows - 1) // rows
    routed_tasks = experts.shape[0] * strips
    shared_tasks = (shared_inter + rows - 1) // rows
    for task in prange(routed_tasks + shared_tasks):
        if task < routed_tasks:
            j = task // strips
            first = (task - j * strips) * rows
            last = min(inter, first + rows)
            begin, end, w = starts[j], starts[j + 1], w13[experts[j]]
            _up(wide, order, top_k, begin, end, w, first, last, limit, hidden)
        else:
            first = (task - routed_tasks) * rows
            last = min(shared_inter, first + rows)
            _up(wide, every, 1, 0, tokens, shared13, first, last, limit, shared_hidden)
    for task in prange((width + rows - 1) // rows):
        first = task * rows
        last = min(width, first + rows)
        sums = np.zeros((tokens, last - first), dtype=np.float32)
        if shared_inter > 0:
            tiled_product(shared_hidden, 0, tokens, shared2, first, last, sums, 0)
        part_sums = np.empty((_TOKENS_PER_PART, last - first), dtype=np.float32)
        for j in range(experts.shape[0]):
            for t0 in range(starts[j], starts[j + 1], _TOKENS_PER_PART):
                t1 = min(starts[j + 1], t0 + _TOKENS_PER_PART)
                tiled_product(hidden, t0, t1, w2[experts[j]], first, last, part_sums, 0)
                for p in range(t0, t1):
                    pair = order[p]
                    token = pair // top_k
                    weight = weights[token, pair - token * top_k]
                    for d in range(last - first):
                        sums[token, d] += weight * part_sums[p - t0, d]
        for t in range(tokens):
            for d in range(last - first):
                out[t, first + d] = narrow(out, sums[t, d])
