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
