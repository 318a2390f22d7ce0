"""Routed experts for a CPU.

Decode is bound by reading the weights of the experts that were hit: each is read once, whatever
the number of tokens that chose it, and all experts, the shared one included, share two parallel
regions. The same kernel serves many tokens, whose first tile reads a strip of weight rows and whose
later tiles find it in the second-level cache; only where torch multiplies bfloat16 in hardware is a
product of torch per expert faster.
"""

from __future__ import annotations

import numpy as np
import torch
from ascend_ops_core.cpu_apart import apart
from ascend_ops_core.cpu_numeric import FASTMATH, array_at, as_numpy, exp_f32, narrow, widen
from ascend_ops_core.cpu_products import widen_rows
from ascend_ops_core.cpu_tasks import no_task_taken, take_task
from ascend_ops_core.cpu_tiles import (
    TILE_TOKENS,
    aligned_rows,
    lines_ahead,
    rows_ahead,
    tile_bound,
    tile_product,
)
from ascend_ops_core.ops.linear.cpu import native_bf16
from numba import njit, prange
from torch.nn import functional as F

# Mean (token, expert) pairs per expert from which torch's bfloat16 products are faster.
_NATIVE_PAIRS_PER_EXPERT = 24
# Tokens that are gathered at once, which bounds the copies of their rows.
_TOKENS_AT_ONCE = 1024
# Up to so many tokens one thread copies them.
_FEW_TOKENS = 32
# Bytes of tokens, and about those of weights, that stay in the second-level cache during a task.
_CACHED = 5 << 17
_ROWS, _LEAST_ROWS, _LEAST_PAIRS = 64, 16, 24
# More than there are threads; those that find no task left cost next to nothing.
_WORKERS = 128
# What tells the kernel the dtype.
_F32, _BF16 = np.float32(0), np.uint16(0)
_NO_LIMIT = float("inf")

_tile_product = apart(tile_product)


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
    alpha: float,
    bias: float,
) -> torch.Tensor | None:
    """See :func:`ascend_fused_moe.ops.experts.fused_experts`; None if an id is not an expert's."""
    kind: np.float32 | np.uint16 = _F32
    if x.dtype == torch.bfloat16:
        many = ids.numel() >= _NATIVE_PAIRS_PER_EXPERT * w13.shape[0]
        if many and native_bf16():
            shared_weights = shared_w13, shared_w2
            given = x, w13, w2, weights, ids, swiglu_limit, *shared_weights, alpha, bias
            return _with_torch(*given)
        kind = _BF16
    # Addresses, since with cold caches it takes 0.1 ms to make views of so many tensors.
    if not x.is_contiguous():
        x = x.contiguous()
    if weights.dtype != torch.float32 or not weights.is_contiguous():
        weights = weights.float().contiguous()
    if ids.dtype != torch.int64 or not ids.is_contiguous():
        ids = ids.long().contiguous()
    shared = 0, 0, 0
    if shared_w13 is not None and shared_w2 is not None:
        shared = shared_w13.data_ptr(), shared_w2.data_ptr(), shared_w2.shape[1]
    out = torch.empty_like(x)
    tokens, top_k = ids.shape
    experts, width, inter = w2.shape
    fits = _experts_at(
        kind,
        (x.data_ptr(), w13.data_ptr(), w2.data_ptr(), weights.data_ptr(), ids.data_ptr()),
        shared,
        out.data_ptr(),
        (tokens, top_k, experts, width, inter),
        (float(swiglu_limit) if swiglu_limit else _NO_LIMIT, float(alpha), float(bias)),
        _TOKENS_AT_ONCE,
    )
    return out if fits else None


def _with_torch(
    x: torch.Tensor,
    w13: torch.Tensor,
    w2: torch.Tensor,
    weights: torch.Tensor,
    ids: torch.Tensor,
    swiglu_limit: float | None,
    shared_w13: torch.Tensor | None,
    shared_w2: torch.Tensor | None,
    alpha: float,
    bias: float,
) -> torch.Tensor | None:
    """By torch's products, one pair of them per expert that was hit."""
    low, high = ids.aminmax()
    if int(low) < 0 or int(high) >= w13.shape[0]:
        return None
    out = torch.empty_like(x, memory_format=torch.contiguous_format)
    if shared_w13 is None or shared_w2 is None:
        added = x.new_empty((0, x.shape[1]))
    else:
        added = _swiglu(x @ shared_w13.T, swiglu_limit, alpha, bias) @ shared_w2.T
    flat = ids.long().flatten().contiguous()
    order, experts, starts = _group(as_numpy(flat), w13.shape[0], max(1, flat.shape[0]))
    tokens = torch.from_numpy(order // ids.shape[1])
    pairs = x.new_empty((flat.shape[0], x.shape[1]))
    bounds = starts.tolist()
    for expert, begin, end in zip(experts.tolist(), bounds[:-1], bounds[1:], strict=True):
        hidden = _swiglu(x[tokens[begin:end]] @ w13[expert].T, swiglu_limit, alpha, bias)
        torch.mm(hidden, w2[expert].T, out=pairs[begin:end])
    _combine(
        as_numpy(pairs),
        order,
        as_numpy(weights.float().contiguous()),
        as_numpy(added),
        as_numpy(out),
    )
    return out


def _swiglu(gate_up: torch.Tensor, limit: float | None, alpha: float, bias: float) -> torch.Tensor:
    # torch's own: its threads and numba's would wait for each other between two products.
    # In float32, since every rounding to bfloat16 between the products adds up over the experts.
    gate, up = gate_up.float().chunk(2, dim=-1)
    if limit:
        gate, up = gate.clamp(max=limit), up.clamp(-limit, limit)
    if alpha == 1 and bias == 0:
        activated = F.silu(gate).mul_(up)
    else:
        activated = (gate * alpha).sigmoid_().mul_(gate).mul_(up + bias)
    return activated.to(gate_up.dtype)


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
def _group(ids, num_experts, at_most):  # type: ignore[no-untyped-def]
    """Sort pairs by expert, in blocks of at most so many of one expert and of about the same size.

    Returns:
        The order, the expert of each block, and where each block starts.
    """
    counts = np.zeros(num_experts + 1, dtype=np.int64)
    for i in range(ids.shape[0]):
        counts[ids[i] + 1] += 1
    hit = 0
    for e in range(num_experts):
        hit += (counts[e + 1] + at_most - 1) // at_most
        counts[e + 1] += counts[e]
    experts = np.empty(hit, dtype=np.int64)
    starts = np.empty(hit + 1, dtype=np.int64)
    j = 0
    for e in range(num_experts):
        pairs = counts[e + 1] - counts[e]
        blocks = (pairs + at_most - 1) // at_most
        for block in range(blocks):
            experts[j] = e
            starts[j] = counts[e] + block * pairs // blocks
            j += 1
    starts[hit] = ids.shape[0]
    order = np.empty(ids.shape[0], dtype=np.int64)
    for i in range(ids.shape[0]):
        e = ids[i]
        order[counts[e]] = i
        counts[e] += 1
    return order, experts, starts


# With numpy's division, as Python's checks for zero and so keeps loops from being vectorised.
@njit(fastmath=FASTMATH, error_model="numpy", cache=True)
def _gated(gate, up, how):  # type: ignore[no-untyped-def]
    """The activation in float32, of ``how``: limit, alpha, bias."""
    limit, alpha, bias = how
    if gate > limit:
        gate = limit
    if up > limit:
        up = limit
    elif up < -limit:
        up = -limit
    return gate / (np.float32(1) + exp_f32(-alpha * gate)) * (up + bias)


@njit(cache=True)
def _rows_of_task(size):  # type: ignore[no-untyped-def]
    """How many rows of so many bytes a task takes, in whole cache lines of results."""
    fit = _CACHED // max(1, size) // _LEAST_ROWS * _LEAST_ROWS
    return min(_ROWS, max(_LEAST_ROWS, fit))


# Not in the kernel itself, where filling an array is a parallel region of its own, before which the
# other threads have to wake up.
@njit(cache=True)
def _owners(order, weights):  # type: ignore[no-untyped-def]
    """Token and weight of every pair, sorted by expert."""
    top_k = weights.shape[1]
    owners = np.empty(order.shape[0], dtype=np.int64)
    scales = np.empty(order.shape[0], dtype=np.float32)
    for p in range(order.shape[0]):
        owners[p] = order[p] // top_k
        scales[p] = weights[owners[p], order[p] - owners[p] * top_k]
    return owners, scales


@njit(cache=True)
def _everyone(count):  # type: ignore[no-untyped-def]
    """Numbers from 0, and weights of 1."""
    return np.arange(count), np.ones(count, dtype=np.float32)


@njit(fastmath=FASTMATH, cache=True)
def _up(wide, places, begin, end, w, gate, up, width, then, column, how, gate_up, hidden):  # type: ignore[no-untyped-def]
    """Fill some columns of the activations of one expert's pairs, from two strips of its rows.

    ``then`` is the first gate row of the strips that come next.
    """
    tokens = end - begin
    t = 0
    tile = 0
    while t < tokens:
        after = tile_bound(tile + 1, tokens)
        count = after - t
        for half in range(2):
            first, later = (up, then + up - gate) if half else (gate, then)
            # Later tiles find the rows in the second-level cache.
            ahead = rows_ahead(up) if t == 0 else lines_ahead(tile, w, later, width)
            _tile_product(
                wide, places, begin + t, count, w, first, first + width, ahead, gate_up,
                half * width,
            )  # fmt: skip
        for i in range(count):
            both = gate_up[i]
            target = hidden[begin + t + i]
            for d in range(width):
                target[column + d] = _gated(both[d], both[width + d], how)
        t = after
        tile += 1


@njit(fastmath=FASTMATH, cache=True)
def _down(hidden, every, begin, end, w, row, width, then, owners, scales, part, sums):  # type: ignore[no-untyped-def]
    """Add a strip of the products of one expert's pairs to the sums of their tokens.

    ``then`` is the first row of the strip that comes next.
    """
    tokens = end - begin
    t = 0
    tile = 0
    while t < tokens:
        after = tile_bound(tile + 1, tokens)
        first = begin + t
        ahead = rows_ahead(then) if t == 0 else lines_ahead(tile, w, then, width)
        _tile_product(hidden, every, first, after - t, w, row, row + width, ahead, part, 0)
        for i in range(after - t):
            target = sums[owners[first + i]]
            scale = scales[first + i]
            for d in range(width):
                target[d] += scale * part[i, d]
        t = after
        tile += 1


_fill_columns, _add_strip = apart(_up), apart(_down)


@njit(fastmath=FASTMATH, parallel=True, cache=True)
def experts_few(x, w13, w2, shared13, shared2, weights, ids, how, out):  # type: ignore[no-untyped-def]
    tokens, width = x.shape
    inter, shared_inter = w2.shape[2], shared2.shape[1]
    order, experts, starts = _group(
        ids.reshape(-1), w13.shape[0], max(_LEAST_PAIRS, _CACHED // (4 * width))
    )
    pairs, hit = order.shape[0], experts.shape[0]
    owners, scales = _owners(order, weights)
    every, ones = _everyone(max(pairs, tokens))
    w13_rows = w13.reshape((w13.shape[0] * 2 * inter, width))
    w2_rows = w2.reshape((w2.shape[0] * width, inter))
    wide = aligned_rows(tokens, width)
    if tokens <= _FEW_TOKENS:
        widen_rows(x, wide)
    else:
        for t in prange(tokens):
            for k in range(width):
                wide[t, k] = widen(x[t, k])
    hidden = aligned_rows(pairs, inter)
    shared_hidden = aligned_rows(tokens, shared_inter)

    rows = _rows_of_task(2 * width * w13.itemsize)
    strips = (inter + rows - 1) // rows
    routed = hit * strips
    tasks = routed + (shared_inter + rows - 1) // rows
    taken = no_task_taken()
    for _ in prange(_WORKERS):
        task = take_task(taken)
        if task < tasks:
            # Known before this one begins, so that its weights may be fetched meanwhile.
            next_task = take_task(taken)
            gate_up = aligned_rows(TILE_TOKENS, 2 * rows)
        while task < tasks:
            if task < routed:
                j = task // strips
                first = (task - j * strips) * rows
                n = min(inter - first, rows)
                gate = experts[j] * 2 * inter + first
                then = gate
                if next_task < routed:
                    k = next_task // strips
                    then = experts[k] * 2 * inter + (next_task - k * strips) * rows
                begin, end = starts[j], starts[j + 1]
                _fill_columns(
                    wide, owners, begin, end, w13_rows, gate, gate + inter, n, then, first, how,
                    gate_up, hidden,
                )  # fmt: skip
            else:
                first = (task - routed) * rows
                n = min(shared_inter - first, rows)
                _fill_columns(
                    wide, every, 0, tokens, shared13, first, shared_inter + first, n, first, first,
                    how, gate_up, shared_hidden,
                )  # fmt: skip
            task = next_task
            next_task = take_task(taken)

    rows = _rows_of_task(inter * w2.itemsize)
    strips = (width + rows - 1) // rows
    down_taken = no_task_taken()
    for _ in prange(_WORKERS):
        task = take_task(down_taken)
        if task < strips:
            next_task = take_task(down_taken)
            part = aligned_rows(TILE_TOKENS, rows)
            sums = aligned_rows(tokens, rows)
        while task < strips:
            first = task * rows
            n = min(width - first, rows)
            sums[:, :n] = 0
            if shared_inter > 0:
                _add_strip(
                    shared_hidden, every, 0, tokens, shared2, first, n, first, every, ones, part,
                    sums,
                )  # fmt: skip
            for j in range(hit):
                row = experts[j] * width + first
                then = row
                if j + 1 < hit:
                    then = experts[j + 1] * width + first
                elif next_task < strips:
                    then = experts[0] * width + next_task * rows
                begin, end = starts[j], starts[j + 1]
                _add_strip(
                    hidden, every, begin, end, w2_rows, row, n, then, owners, scales, part, sums
                )
            for t in range(tokens):
                for d in range(n):
                    out[t, first + d] = narrow(out, sums[t, d])
            task = next_task
            next_task = take_task(down_taken)


_experts_few = apart(experts_few)


@njit(cache=True)
def _experts_at(kind, given, shared, out, sizes, how, at_once):  # type: ignore[no-untyped-def]
    """``experts_few`` on addresses, some tokens at once; False if an id is not an expert's."""
    tokens, top_k, experts, width, inter = sizes
    ids = array_at(given[4], (tokens, top_k), np.int64(0))
    for t in range(tokens):
        for j in range(top_k):
            if ids[t, j] < 0 or ids[t, j] >= experts:
                return False
    x = array_at(given[0], (tokens, width), kind)
    w13 = array_at(given[1], (experts, 2 * inter, width), kind)
    w2 = array_at(given[2], (experts, width, inter), kind)
    weights = array_at(given[3], (tokens, top_k), np.float32(0))
    shared13 = array_at(shared[0], (2 * shared[2], width), kind)
    shared2 = array_at(shared[1], (width, shared[2]), kind)
    results = array_at(out, (tokens, width), kind)
    bounds = np.float32(how[0]), np.float32(how[1]), np.float32(how[2])
    for t in range(0, tokens, at_once):
        end = min(tokens, t + at_once)
        _experts_few(
            x[t:end], w13, w2, shared13, shared2, weights[t:end], ids[t:end], bounds,
            results[t:end],
        )  # fmt: skip
    return True
