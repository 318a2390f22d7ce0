"""Triton kernels for the tests of the interpreter session."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def copy(x_ptr, out_ptr, count, BLOCK: tl.constexpr):
    """out = x in the dtype of out, for the first ``count`` values."""
    columns = tl.arange(0, BLOCK)
    x = tl.load(x_ptr + columns, mask=columns < count)
    tl.store(out_ptr + columns, x.to(out_ptr.dtype.element_ty), mask=columns < count)


@triton.jit
def product(x_ptr, y_ptr, out_ptr, N: tl.constexpr):
    """out = x @ y for square matrices."""
    lanes = tl.arange(0, N)
    here = lanes[:, None] * N + lanes[None, :]
    x = tl.load(x_ptr + here)
    y = tl.load(y_ptr + here)
    tl.store(out_ptr + here, tl.dot(x, y, input_precision="ieee"))
