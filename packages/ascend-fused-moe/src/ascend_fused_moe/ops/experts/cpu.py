"""Routed experts for a CPU.

Decode is bound by reading the weights of the experts that were hit: each is read once, whatever
the number of tokens that chose it, and all experts, the shared one included, share one parallel
region. The same kernel serves many tokens, whose tiles read a strip of weight rows one after the
other while it lies in the second-level cache; only where torch multiplies bfloat16 by instructions
that the kernel does not have is a product of torch per expert faster.
"""

from __future__ import annotations

import functools

import numpy as np
import torch
from ascend_ops_core.cpu_apart import apart
from ascend_ops_core.cpu_numeric import FASTMATH, array_at, narrow, widen
from ascend_ops_core.cpu_tasks import no_task_taken, take_task, task_done, wait_for_tasks
from ascend_ops_core.cpu_tiles import (
    TILE_TOKENS,
    aligned_rows,
    lines_ahead,
    multiplies_bf16,
    rows_ahead,
    tile_bound,
    tile_product,
    token_rows,
)
from ascend_ops_core.ops.linear.cpu import native_bf16
from numba import njit, prange

from ascend_fused_moe.ops.experts.cpu_activation import gated
from ascend_fused_moe.ops.experts.cpu_by_torch import with_torch
from ascend_fused_moe.ops.experts.cpu_columns import (
    add_rows,
    column_blocks,
    column_room,
    fill_columns,
)
from ascend_fused_moe.ops.experts.cpu_pairs import everyone, group, owners

# Mean (token, expert) pairs per expert from which torch's bfloat16 products are faster.
_NATIVE_PAIRS_PER_EXPERT = 24
# Tokens that are gathered at once, which bounds the copies of their rows.
_TOKENS_AT_ONCE = 1024
# Up to so many tokens one thread copies them.
_FEW_TOKENS = 32
# Bytes of an expert's tokens that are taken at once.
_CACHED_TOKENS = 5 << 17
_LEAST_PAIRS = 24
# Bytes of a task's weight rows, beside which those of the next one fit into the second-level cache.
_CACHED_ROWS = 5 << 17
_ROWS, _LEAST_ROWS = 64, 16
# Where tokens may be in panels, the next smaller number that those take without a rest.
_PANEL_ROWS = 48
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


@functools.cache
def _torch_is_faster() -> bool:
    """Whether torch's products of many bfloat16 tokens are faster than the kernel's."""
    return native_bf16() and (torch.cpu._is_amx_tile_supported() or not multiplies_bf16())


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
        if many and _torch_is_faster():
            shared_weights = shared_w13, shared_w2
            given = x, w13, w2, weights, ids, swiglu_limit, *shared_weights, alpha, bias
            return with_torch(*given)
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


@njit(cache=True)
def _rows_of_task(size, tokens, units):  # type: ignore[no-untyped-def]
    """How many rows of so many bytes a task takes, in whole cache lines of results.

    ``units`` is 0 if no block of pairs is computed in panels.
    """
    fit = _CACHED_ROWS // max(1, size) // _LEAST_ROWS * _LEAST_ROWS
    # The last tasks of few tokens should not leave threads without one for long.
    most = _ROWS // 2 if tokens <= _FEW_TOKENS else _PANEL_ROWS if units > 0 else _ROWS
    return min(most, max(_LEAST_ROWS, fit))


@njit(fastmath=FASTMATH, cache=True)
def _copy_rows(x, first, last, out):  # type: ignore[no-untyped-def]
    for t in range(first, last):
        for k in range(x.shape[1]):
            out[t, k] = narrow(out, widen(x[t, k]))


@njit(fastmath=FASTMATH, cache=True)
def _up(x, places, begin, end, w, gate, up, width, then, column, how, gate_up, hidden):  # type: ignore[no-untyped-def]
    """Fill some columns of the activations of one expert's pairs, from two strips of its rows.

    ``then`` is the first gate row of the strips that come next.
    """
    tokens = end - begin
    tiles = (tokens + TILE_TOKENS - 1) // TILE_TOKENS
    for tile in range(tiles):
        t = tile_bound(tile, tokens)
        count = tile_bound(tile + 1, tokens) - t
        for half in range(2):
            first, later = (up, then + up - gate) if half else (gate, then)
            if tiles == 1:
                ahead = rows_ahead(then if half else up)
            else:
                ahead = lines_ahead(tile, tiles, w, later, width)
            _tile_product(
                x, places, begin + t, count, w, first, first + width, ahead, gate_up, half * width
            )
        for i in range(count):
            both = gate_up[i]
            target = hidden[begin + t + i]
            for d in range(width):
                target[column + d] = narrow(hidden, gated(both[d], both[width + d], how))


@njit(fastmath=FASTMATH, cache=True)
def _down(hidden, every, begin, end, w, row, width, then, of, scales, part, sums):  # type: ignore[no-untyped-def]
    """Add a strip of the products of one expert's pairs to the sums of their tokens.

    ``then`` is the first row of the strip that comes next.
    """
    tokens = end - begin
    tiles = (tokens + TILE_TOKENS - 1) // TILE_TOKENS
    for tile in range(tiles):
        t = tile_bound(tile, tokens)
        count = tile_bound(tile + 1, tokens) - t
        first = begin + t
        ahead = rows_ahead(then) if tiles == 1 else lines_ahead(tile, tiles, w, then, width)
        _tile_product(hidden, every, first, count, w, row, row + width, ahead, part, 0)
        for i in range(count):
            target = sums[of[first + i]]
            scale = scales[first + i]
            for d in range(width):
                target[d] += scale * part[i, d]


_fill_strip, _add_strip = apart(_up), apart(_down)


# Tasks of the second product wait until all of the first are done: another parallel region would
# have threads sleep and wake up in between.
@njit(fastmath=FASTMATH, parallel=True, cache=True)
def experts_few(x, w13, w2, shared13, shared2, weights, ids, how, out):  # type: ignore[no-untyped-def]
    tokens, width = x.shape
    inter, shared_inter = w2.shape[2], shared2.shape[1]
    order, experts, starts = group(
        ids.reshape(-1), w13.shape[0], max(_LEAST_PAIRS, _CACHED_TOKENS // (4 * width))
    )
    pairs, hit = order.shape[0], experts.shape[0]
    of, scales = owners(order, weights)
    # Rows of a task are numbered by it as well.
    every, ones = everyone(max(pairs, tokens, _ROWS))
    w13_rows = w13.reshape((w13.shape[0] * 2 * inter, width))
    w2_rows = w2.reshape((w2.shape[0] * width, inter))
    rows = token_rows(tokens, width, w13)
    if tokens <= _FEW_TOKENS:
        _copy_rows(x, 0, tokens, rows)
    else:
        for t in prange(tokens):
            _copy_rows(x, t, t + 1, rows)
    hidden = token_rows(pairs, inter, w2)
    shared_hidden = token_rows(tokens, shared_inter, w2)
    places, columns, units = column_blocks(starts, inter, w2)

    up_size = _rows_of_task(2 * width * w13.itemsize, tokens, units)
    strips = (inter + up_size - 1) // up_size
    routed = hit * strips
    ups = routed + (shared_inter + up_size - 1) // up_size
    down_size = _rows_of_task(inter * w2.itemsize, tokens, units)
    tasks = ups + (width + down_size - 1) // down_size
    taken, done = no_task_taken(), no_task_taken()
    for _ in prange(_WORKERS):
        task = take_task(taken)
        if task < tasks:
            # Known before this one begins, so that its weights may be fetched meanwhile.
            next_task = take_task(taken)
            gate_up = aligned_rows(TILE_TOKENS, 2 * up_size)
            part = aligned_rows(TILE_TOKENS, down_size)
            sums = aligned_rows(tokens, down_size)
            room = column_room(units, width, down_size)
        while task < ups:
            if task < routed:
                j = task // strips
                first = (task - j * strips) * up_size
                n = min(inter - first, up_size)
                gate = experts[j] * 2 * inter + first
                then = gate
                if next_task < routed:
                    k = next_task // strips
                    then = experts[k] * 2 * inter + (next_task - k * strips) * up_size
                if places[j] >= 0:
                    fill_columns(
                        x, of, j, starts, w13_rows, gate, inter, n, then, first, how, room,
                        columns, places[j],
                    )  # fmt: skip
                else:
                    _fill_strip(
                        rows, of, starts[j], starts[j + 1], w13_rows, gate, gate + inter, n, then,
                        first, how, gate_up, hidden,
                    )  # fmt: skip
            else:
                first = (task - routed) * up_size
                n = min(shared_inter - first, up_size)
                _fill_strip(
                    rows, every, 0, tokens, shared13, first, shared_inter + first, n, first, first,
                    how, gate_up, shared_hidden,
                )  # fmt: skip
            task_done(done)
            task = next_task
            next_task = take_task(taken)
        if task < tasks:
            wait_for_tasks(done, ups)
        while task < tasks:
            first = (task - ups) * down_size
            n = min(width - first, down_size)
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
                elif next_task < tasks:
                    then = experts[0] * width + (next_task - ups) * down_size
                if places[j] >= 0:
                    add_rows(
                        columns, places[j], every, j, starts, w2_rows, row, n, then, of, scales,
                        room, sums,
                    )  # fmt: skip
                else:
                    _add_strip(
                        hidden, every, starts[j], starts[j + 1], w2_rows, row, n, then, of, scales,
                        part, sums,
                    )  # fmt: skip
            for t in range(tokens):
                for d in range(n):
                    out[t, first + d] = narrow(out, sums[t, d])
            task = next_task
            next_task = take_task(taken)


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
