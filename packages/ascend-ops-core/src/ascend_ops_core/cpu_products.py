"""The inner loops of matrix products with few tokens, shared by the numba kernels.

Weights are float32 or the bits of bfloat16, tokens are float32. Several tokens share each pass, so
that a loaded value is used more than once and the final sums of vector lanes weigh less.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from ascend_ops_core.cpu_apart import apart
from ascend_ops_core.cpu_numeric import FASTMATH, narrow, widen
from ascend_ops_core.cpu_stream import streamed_dot

# Weight rows of one parallel task: small enough to balance, large enough to amortise its start.
ROWS_PER_TASK = 16


@njit(fastmath=FASTMATH, cache=True)
def _two_by_two(x0, x1, w0, w1):  # type: ignore[no-untyped-def]
    a0 = np.float32(0)
    a1 = np.float32(0)
    b0 = np.float32(0)
    b1 = np.float32(0)
    for k in range(x0.shape[0]):
        u = widen(w0[k])
        v = widen(w1[k])
        a0 += x0[k] * u
        b0 += x0[k] * v
        a1 += x1[k] * u
        b1 += x1[k] * v
    return a0, a1, b0, b1


@njit(fastmath=FASTMATH, cache=True)
def _four_by_two(x0, x1, x2, x3, w0, w1):  # type: ignore[no-untyped-def]
    a0 = np.float32(0)
    a1 = np.float32(0)
    a2 = np.float32(0)
    a3 = np.float32(0)
    b0 = np.float32(0)
    b1 = np.float32(0)
    b2 = np.float32(0)
    b3 = np.float32(0)
    for k in range(x0.shape[0]):
        u = widen(w0[k])
        v = widen(w1[k])
        a0 += x0[k] * u
        b0 += x0[k] * v
        a1 += x1[k] * u
        b1 += x1[k] * v
        a2 += x2[k] * u
        b2 += x2[k] * v
        a3 += x3[k] * u
        b3 += x3[k] * v
    return a0, a1, a2, a3, b0, b1, b2, b3


@njit(fastmath=FASTMATH, cache=True)
def _product(x, t0, t1, w, first, last, out, column):  # type: ignore[no-untyped-def]
    """Some weight rows times some tokens.

    ``out[t - t0, column + n - first] = x[t] . w[n]`` for ``t`` in ``[t0, t1)`` and ``n`` in
    ``[first, last)``. Every weight row is read from memory once.

    Args:
        x: ``[T, K]`` float32, contiguous.
        t0: first token.
        t1: end of the tokens.
        w: ``[N, K]`` float32 or bfloat16 bits, contiguous.
        first: first weight row.
        last: end of the weight rows.
        out: ``[>= t1 - t0, >= column + last - first]`` float32 or bfloat16 bits.
        column: where the result of row ``first`` goes.
    """
    n = first
    shift = column - first
    if t1 - t0 == 1:
        # Row after row is one stream for the prefetcher, which several rows at once are not.
        while n < last:
            out[0, shift + n] = narrow(out, streamed_dot(x[t0], w[n]))
            n += 1
    while n + 2 <= last:
        w0 = w[n]
        w1 = w[n + 1]
        c = shift + n
        t = t0
        while t + 4 <= t1:
            a0, a1, a2, a3, b0, b1, b2, b3 = _four_by_two(
                x[t], x[t + 1], x[t + 2], x[t + 3], w0, w1
            )
            r = t - t0
            out[r, c] = narrow(out, a0)
            out[r + 1, c] = narrow(out, a1)
            out[r + 2, c] = narrow(out, a2)
            out[r + 3, c] = narrow(out, a3)
            out[r, c + 1] = narrow(out, b0)
            out[r + 1, c + 1] = narrow(out, b1)
            out[r + 2, c + 1] = narrow(out, b2)
            out[r + 3, c + 1] = narrow(out, b3)
            t += 4
        while t + 2 <= t1:
            a0, a1, b0, b1 = _two_by_two(x[t], x[t + 1], w0, w1)
            r = t - t0
            out[r, c] = narrow(out, a0)
            out[r + 1, c] = narrow(out, a1)
            out[r, c + 1] = narrow(out, b0)
            out[r + 1, c + 1] = narrow(out, b1)
            t += 2
        if t < t1:
            out[t - t0, c] = narrow(out, streamed_dot(x[t], w0))
            out[t - t0, c + 1] = narrow(out, streamed_dot(x[t], w1))
        n += 2
    if n < last:
        for t in range(t0, t1):
            out[t - t0, shift + n] = narrow(out, streamed_dot(x[t], w[n]))


product = apart(_product)


@njit(fastmath=FASTMATH, cache=True)
def widen_rows(rows, out):  # type: ignore[no-untyped-def]
    """Copy ``rows [T, K]`` of float32 or bfloat16 bits to ``out [T, K]`` float32."""
    for t in range(rows.shape[0]):
        for k in range(rows.shape[1]):
            out[t, k] = widen(rows[t, k])
