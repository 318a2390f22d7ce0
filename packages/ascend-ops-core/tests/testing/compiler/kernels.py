"""Triton kernels for the tests of the compile check: good ones, and one for each way to fail."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def twice(value):
    """Called by a kernel, so that it counts as part of it."""
    return value + value


@triton.jit
def add(x_ptr, y_ptr, out_ptr, programs, BLOCK: tl.constexpr):
    """out = x + y in float32."""
    for unit in range(tl.program_id(0), programs, tl.num_programs(0)):
        columns = unit * BLOCK + tl.arange(0, BLOCK)
        x = tl.load(x_ptr + columns)
        y = tl.load(y_ptr + columns)
        tl.store(out_ptr + columns, x + y)


@triton.jit
def add_row_by_row(x_ptr, y_ptr, out_ptr, programs, WIDTH: tl.constexpr, BLOCK: tl.constexpr):
    """The same over rows of a known width, so that the inner loop's length is known."""
    for unit in range(tl.program_id(0), programs, tl.num_programs(0)):
        for start in range(0, WIDTH, BLOCK):
            columns = unit * WIDTH + start + tl.arange(0, BLOCK)
            tl.store(out_ptr + columns, tl.load(x_ptr + columns) + tl.load(y_ptr + columns))


@triton.jit
def gather(x_ptr, index_ptr, out_ptr, programs, BLOCK: tl.constexpr):
    """out[i] = x[index[i]]: element by element on an NPU."""
    for unit in range(tl.program_id(0), programs, tl.num_programs(0)):
        columns = unit * BLOCK + tl.arange(0, BLOCK)
        tl.store(out_ptr + columns, twice(tl.load(x_ptr + tl.load(index_ptr + columns))))


@triton.jit
def matmul(a_ptr, b_ptr, out_ptr, K: tl.constexpr, N: tl.constexpr, BLOCK: tl.constexpr):
    """out[BLOCK, N] = a[BLOCK, K] @ b[N, K].T, on the cube cores."""
    rows = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    columns = tl.arange(0, N)
    total = tl.zeros((BLOCK, N), tl.float32)
    for start in range(0, K, BLOCK):
        k = start + tl.arange(0, BLOCK)
        a = tl.load(a_ptr + rows[:, None] * K + k[None, :])
        b = tl.load(b_ptr + columns[:, None] * K + k[None, :])
        total = tl.dot(a, tl.trans(b), total)
    tl.store(out_ptr + rows[:, None] * N + columns[None, :], total)


@triton.jit
def argmax(x_ptr, out_ptr, BLOCK: tl.constexpr):
    """A5 refuses reductions with two results."""
    tl.store(out_ptr, tl.argmax(tl.load(x_ptr + tl.arange(0, BLOCK)), 0))


@triton.jit
def running_sum(x_ptr, out_ptr, BLOCK: tl.constexpr):
    """The front end calls a function of Ascend's library for it."""
    columns = tl.arange(0, BLOCK)
    tl.store(out_ptr + columns, tl.cumsum(tl.load(x_ptr + columns), 0))


@triton.jit
def scale_tail(x_ptr, out_ptr, scale, count, BLOCK: tl.constexpr):
    """out = scale * x for `count` elements, in one block that is larger."""
    columns = tl.arange(0, BLOCK)
    inside = columns < count
    x = tl.load(x_ptr + columns, mask=inside, other=0.0).to(tl.float32)
    tl.store(out_ptr + columns, (x * scale).to(out_ptr.dtype.element_ty), mask=inside)


@triton.jit
def misspelt(x_ptr, out_ptr, BLOCK: tl.constexpr):
    """Triton's language has no such function."""
    tl.store(out_ptr, tl.maximal(tl.load(x_ptr + tl.arange(0, BLOCK)), 0))
