"""Pairs of a token and one of its experts, in the order of experts."""

from __future__ import annotations

import numpy as np
from numba import njit


@njit(cache=True)
def group(ids, num_experts, at_most):  # type: ignore[no-untyped-def]
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


# Not in the kernel itself, where filling an array is a parallel region of its own, before which the
# other threads have to wake up.
@njit(cache=True)
def owners(order, weights):  # type: ignore[no-untyped-def]
    """Token and weight of every pair, sorted by expert."""
    top_k = weights.shape[1]
    tokens = np.empty(order.shape[0], dtype=np.int64)
    scales = np.empty(order.shape[0], dtype=np.float32)
    for p in range(order.shape[0]):
        tokens[p] = order[p] // top_k
        scales[p] = weights[tokens[p], order[p] - tokens[p] * top_k]
    return tokens, scales


@njit(cache=True)
def everyone(count):  # type: ignore[no-untyped-def]
    """Numbers from 0, and weights of 1."""
    return np.arange(count), np.ones(count, dtype=np.float32)
