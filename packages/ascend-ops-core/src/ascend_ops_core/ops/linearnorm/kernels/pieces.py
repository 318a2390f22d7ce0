"""Pieces that the kernels of this family share.

A head is three tiles: the first and second half of its rotated channels, and the rest. So nothing
is taken apart or joined in the unified buffer.
"""

from __future__ import annotations

import triton
import triton.language as tl

from ascend_ops_core.kernels import as_int64


@triton.jit
def table_row(table_ptr, position, limit, HALF: tl.constexpr, BLOCK: tl.constexpr):
    """Cosines and sines of one position; NaN outside of the table, of which row 0 is read then."""
    row = tl.where(position < 0, 0, position)
    row = tl.where(row >= limit, 0, row)
    poison = tl.where(row == position, 0.0, float("nan"))
    c = tl.arange(0, BLOCK)
    start = table_ptr + as_int64(row) * (2 * HALF)
    cos = tl.load(start + c, mask=c < HALF, other=0.0).to(tl.float32) + poison
    sin = tl.load(start + HALF + c, mask=c < HALF, other=0.0).to(tl.float32) + poison
    return cos, sin


@triton.jit
def channels(
    ptr, HALF: tl.constexpr, REST: tl.constexpr, BLOCK: tl.constexpr, BLOCK_REST: tl.constexpr
):
    """A vector over a head's channels in float32 as its three parts."""
    c = tl.arange(0, BLOCK)
    first = tl.load(ptr + c, mask=c < HALF, other=0.0).to(tl.float32)
    second = tl.load(ptr + HALF + c, mask=c < HALF, other=0.0).to(tl.float32)
    e = tl.arange(0, BLOCK_REST)
    rest = tl.load(ptr + 2 * HALF + e, mask=e < REST, other=0.0).to(tl.float32)
    return first, second, rest


@triton.jit
def norm_and_rotate(
    x_ptr,
    out_ptr,
    weight_ptr,
    bias_ptr,
    cos,
    sin,
    mean_square,
    eps,
    HEADS: tl.constexpr,
    STEP: tl.constexpr,
    HALF: tl.constexpr,
    REST: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
    BLOCK_REST: tl.constexpr,
    WHOLE: tl.constexpr,
):
    """Norm and rotate the heads of one token.

    With ``WHOLE`` the norm goes by ``mean_square`` and weights are those of all heads; else each
    head has its own norm, and weight and bias (which may be None) are those of one head.
    """
    dim: tl.constexpr = 2 * HALF + REST
    c = tl.arange(0, BLOCK)
    e = tl.arange(0, BLOCK_REST)
    for start in range(0, HEADS, ROWS):
        h = start + tl.arange(0, ROWS)
        mask = (h < HEADS)[:, None] & (c < HALF)[None, :]
        x = x_ptr + h[:, None] * STEP + c[None, :]
        first = tl.load(x, mask=mask, other=0.0).to(tl.float32)
        second = tl.load(x + HALF, mask=mask, other=0.0).to(tl.float32)
        if REST > 0:
            mask_rest = (h < HEADS)[:, None] & (e < REST)[None, :]
            x = x_ptr + 2 * HALF + h[:, None] * STEP + e[None, :]
            rest = tl.load(x, mask=mask_rest, other=0.0).to(tl.float32)
        if WHOLE:
            scale = 1.0 / tl.sqrt(mean_square + eps)
            first = first * scale
            second = second * scale
            if REST > 0:
                rest = rest * scale
        else:
            squares = tl.sum(first * first + second * second, axis=1)
            if REST > 0:
                squares += tl.sum(rest * rest, axis=1)
            scale = (1.0 / tl.sqrt(squares / dim + eps))[:, None]
            first = first * scale
            second = second * scale
            if REST > 0:
                rest = rest * scale
        if WHOLE:
            w = weight_ptr + h[:, None] * dim + c[None, :]
            first = first * tl.load(w, mask=mask, other=0.0).to(tl.float32)
            second = second * tl.load(w + HALF, mask=mask, other=0.0).to(tl.float32)
            if REST > 0:
                w = weight_ptr + 2 * HALF + h[:, None] * dim + e[None, :]
                rest = rest * tl.load(w, mask=mask_rest, other=0.0).to(tl.float32)
        elif weight_ptr is not None:
            w1, w2, w3 = channels(weight_ptr, HALF, REST, BLOCK, BLOCK_REST)
            first = first * w1[None, :]
            second = second * w2[None, :]
            if REST > 0:
                rest = rest * w3[None, :]
        if bias_ptr is not None:
            b1, b2, b3 = channels(bias_ptr, HALF, REST, BLOCK, BLOCK_REST)
            first = first + b1[None, :]
            second = second + b2[None, :]
            if REST > 0:
                rest = rest + b3[None, :]
        kind = out_ptr.dtype.element_ty
        out = out_ptr + h[:, None] * dim + c[None, :]
        tl.store(out, (first * cos[None, :] - second * sin[None, :]).to(kind), mask=mask)
        tl.store(out + HALF, (second * cos[None, :] + first * sin[None, :]).to(kind), mask=mask)
        if REST > 0:
            out = out_ptr + 2 * HALF + h[:, None] * dim + e[None, :]
            tl.store(out, rest.to(kind), mask=mask_rest)


@triton.jit
def copy_heads(
    x_ptr, out_ptr, HEADS: tl.constexpr, STEP: tl.constexpr, WIDTH: tl.constexpr, ROWS: tl.constexpr
):
    """Copy rows of ``WIDTH`` that lie ``STEP`` apart to rows side by side."""
    block: tl.constexpr = triton.next_power_of_2(WIDTH)
    c = tl.arange(0, block)
    for start in range(0, HEADS, ROWS):
        h = start + tl.arange(0, ROWS)
        mask = (h < HEADS)[:, None] & (c < WIDTH)[None, :]
        x = tl.load(x_ptr + h[:, None] * STEP + c[None, :], mask=mask)
        tl.store(out_ptr + h[:, None] * WIDTH + c[None, :], x, mask=mask)
