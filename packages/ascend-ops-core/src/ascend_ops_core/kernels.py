"""Small pieces that Triton kernels of every package share."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def as_int64(value):
    """A scalar as int64, for offsets that may pass 2^31.

    Triton's interpreter hands loop counters as Python integers, which have no ``.to``.
    """
    return tl.full((), 0, tl.int64) + value


@triton.jit
def sigmoid_divisor(x):
    """``1 + exp(-x)``: one or ``x`` divided by it is the sigmoid or silu of a float32 tile.

    A2's compiler makes two operations of ``-x`` and one of a product.
    """
    return 1.0 + tl.exp(x * -1.0)


@triton.jit
def nearest_int8(x):
    """float32 values in [-128, 127] to the nearest integer, ties to even.

    The sum with 1.5 * 2^23 is rounded to an integer, whose eight lowest bits are the result's.
    """
    return (x + 12582912.0).to(tl.int32, bitcast=True).to(tl.int8)
