"""One tile of keys and values in a running softmax, which attention over blocks and MLA share.

For MLA keys and values are the same rows, of which values are the first channels.
"""

from __future__ import annotations

import numpy as np
from ascend_ops_core.cpu_apart import apart
from ascend_ops_core.cpu_numeric import FASTMATH, exp_f32
from numba import njit

__all__ = ["TILE", "add_tile"]

TILE = 32
"""Rows of a tile."""


@njit(fastmath=FASTMATH, cache=True)
def _tile(q, keys, values, count, weights, acc, top, total, h):  # type: ignore[no-untyped-def]
    """Add one tile of keys and values to a head's running softmax.

    ``keys [TILE, W]`` and ``values [TILE, >= A]``, of which ``count`` are real and the others
    finite; ``q [W]``; ``acc [A]``; ``weights [TILE]``, for this tile alone; ``top`` and ``total``
    of all heads.
    """
    width, inner = q.shape[0], acc.shape[0]
    # Four rows share each pass over the query.
    for r in range(0, TILE, 4):
        r0, r1, r2, r3 = keys[r], keys[r + 1], keys[r + 2], keys[r + 3]
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
        weights[r] = a0
        weights[r + 1] = a1
        weights[r + 2] = a2
        weights[r + 3] = a3
    highest = top[h]
    for r in range(count):
        highest = max(highest, weights[r])
    factor = exp_f32(top[h] - highest) if total[h] > 0 else np.float32(0)
    share = total[h] * factor
    for r in range(count):
        weights[r] = exp_f32(weights[r] - highest)
        share += weights[r]
    for r in range(count, TILE):
        weights[r] = np.float32(0)
    top[h] = highest
    total[h] = share
    for d in range(inner):
        acc[d] *= factor
    for r in range(0, TILE, 4):
        r0, r1, r2, r3 = values[r], values[r + 1], values[r + 2], values[r + 3]
        w0, w1, w2, w3 = weights[r], weights[r + 1], weights[r + 2], weights[r + 3]
        for d in range(inner):
            acc[d] += w0 * r0[d] + w1 * r1[d] + w2 * r2[d] + w3 * r3[d]


add_tile = apart(_tile)
"""Compiled once, not again with each caller."""
