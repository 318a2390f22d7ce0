"""Pieces that the kernels of this family share.

A head is three tiles: the first and second half of its rotated channels, and the rest. So nothing
is taken apart or joined in the unified buffer.
"""

from __future__ import annotations

import triton
import triton.language as tl

from ascend_ops_core.ops.rotary.kernels.tile import per_head, token_axis


@triton.jit
def channels(
    ptr,
    HALF: tl.constexpr,
    REST: tl.constexpr,
    BLOCK: tl.constexpr,
    BLOCK_REST: tl.constexpr,
    GIVEN: tl.constexpr,
):
    """A vector over a head's channels in float32 as its three parts; zeros without one."""
    c = tl.arange(0, BLOCK)
    e = tl.arange(0, BLOCK_REST)
    first = tl.zeros((BLOCK,), tl.float32)
    second = tl.zeros((BLOCK,), tl.float32)
    rest = tl.zeros((BLOCK_REST,), tl.float32)
    if GIVEN:
        first = tl.load(ptr + c, mask=c < HALF, other=0.0).to(tl.float32)
        second = tl.load(ptr + HALF + c, mask=c < HALF, other=0.0).to(tl.float32)
        rest = tl.load(ptr + 2 * HALF + e, mask=e < REST, other=0.0).to(tl.float32)
    return first, second, rest


@triton.jit
def _loaded(ptr, mask):
    return tl.load(ptr, mask=mask, other=0.0).to(tl.float32)


@triton.jit
def norm_and_rotate(
    x_ptr,
    out_ptr,
    weight_ptr,
    weight_1,
    weight_2,
    weight_3,
    bias_1,
    bias_2,
    bias_3,
    cos,
    sin,
    mean_square,
    start,
    tokens,
    row_stride,
    eps,
    HEADS: tl.constexpr,
    STEP: tl.constexpr,
    HALF: tl.constexpr,
    REST: tl.constexpr,
    TOKENS: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
    BLOCK_REST: tl.constexpr,
    WHOLE: tl.constexpr,
    WEIGHTED: tl.constexpr,
    BIASED: tl.constexpr,
):
    """Norm and rotate the heads of ``TOKENS`` tokens from ``start`` on, ``ROWS`` heads at a time.

    With ``WHOLE`` the norm goes by ``mean_square`` of each token and weights are those of all
    heads, at ``weight_ptr``; else each head has its own norm, and weights and biases, each in three
    parts, are those of one head.
    """
    dim: tl.constexpr = 2 * HALF + REST
    t = token_axis(TOKENS, ROWS)
    cos = per_head(cos, ROWS)
    sin = per_head(sin, ROWS)
    c = tl.arange(0, BLOCK)[None, None, :]
    e = tl.arange(0, BLOCK_REST)[None, None, :]
    for head in range(0, HEADS, ROWS):
        h = head + tl.arange(0, ROWS)[None, :, None]
        here = (t < tokens - start) & (h < HEADS)
        x = x_ptr + start * row_stride + t * row_stride + h * STEP
        out = out_ptr + start * (HEADS * dim) + t * (HEADS * dim) + h * dim
        mask = here & (c < HALF)
        first = _loaded(x + c, mask)
        second = _loaded(x + HALF + c, mask)
        if REST > 0:
            mask_rest = here & (e < REST)
            rest = _loaded(x + 2 * HALF + e, mask_rest)
        if WHOLE:
            scale = 1.0 / tl.sqrt(mean_square + eps)
            if TOKENS > 1:
                scale = scale[None, :, None] if ROWS == 1 else scale[:, None, None]
        else:
            squares = tl.sum(first * first + second * second, axis=2)
            if REST > 0:
                squares += tl.sum(rest * rest, axis=2)
            scale = (1.0 / tl.sqrt(squares / dim + eps))[:, :, None]
        first = first * scale
        second = second * scale
        if REST > 0:
            rest = rest * scale
        if WHOLE:
            w = weight_ptr + h * dim
            first = first * _loaded(w + c, (h < HEADS) & (c < HALF))
            second = second * _loaded(w + HALF + c, (h < HEADS) & (c < HALF))
            if REST > 0:
                rest = rest * _loaded(w + 2 * HALF + e, (h < HEADS) & (e < REST))
        elif WEIGHTED:
            first = first * weight_1[None, None, :]
            second = second * weight_2[None, None, :]
            if REST > 0:
                rest = rest * weight_3[None, None, :]
        if BIASED:
            first = first + bias_1[None, None, :]
            second = second + bias_2[None, None, :]
            if REST > 0:
                rest = rest + bias_3[None, None, :]
        kind = out_ptr.dtype.element_ty
        tl.store(out + c, (first * cos - second * sin).to(kind), mask=mask)
        tl.store(out + HALF + c, (second * cos + first * sin).to(kind), mask=mask)
        if REST > 0:
            tl.store(out + 2 * HALF + e, rest.to(kind), mask=mask_rest)


@triton.jit
def copy_heads(
    x_ptr,
    out_ptr,
    start,
    tokens,
    row_stride,
    HEADS: tl.constexpr,
    STEP: tl.constexpr,
    WIDTH: tl.constexpr,
    TOKENS: tl.constexpr,
    ROWS: tl.constexpr,
):
    """Copy rows of ``WIDTH`` that lie ``STEP`` apart to rows side by side, token by token."""
    block: tl.constexpr = triton.next_power_of_2(WIDTH)
    t = token_axis(TOKENS, ROWS)
    c = tl.arange(0, block)[None, None, :]
    for head in range(0, HEADS, ROWS):
        h = head + tl.arange(0, ROWS)[None, :, None]
        mask = (t < tokens - start) & (h < HEADS) & (c < WIDTH)
        x = x_ptr + start * row_stride + t * row_stride + h * STEP + c
        out = out_ptr + start * (HEADS * WIDTH) + t * (HEADS * WIDTH) + h * WIDTH + c
        tl.store(out, tl.load(x, mask=mask), mask=mask)
