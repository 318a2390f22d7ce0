"""Pieces that the kernels of the gated delta rule share."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

EPSILON = tl.constexpr(1e-6)


@triton.jit
def raw_rows(at, row_stride, count, WIDTH: tl.constexpr, PADDED: tl.constexpr, ROWS: tl.constexpr):
    """``[ROWS, PADDED]`` as they lie in memory; zeros behind ``count``."""
    r = tl.arange(0, ROWS)
    d = tl.arange(0, PADDED)
    mask = (r < count)[:, None] & (d < WIDTH)[None, :]
    return tl.load(at + r[:, None] * row_stride + d[None, :], mask=mask, other=0.0)


@triton.jit
def load_rows(at, row_stride, count, WIDTH: tl.constexpr, PADDED: tl.constexpr, ROWS: tl.constexpr):
    """``[ROWS, PADDED]`` float32; zeros behind ``count``."""
    return raw_rows(at, row_stride, count, WIDTH, PADDED, ROWS).to(tl.float32)


@triton.jit
def lengths(rows, NORMALIZE: tl.constexpr):
    """What rows are divided by."""
    if NORMALIZE:
        return tl.sqrt(tl.sum(rows * rows, axis=1) + EPSILON)
    return tl.full((rows.shape[0],), 1.0, tl.float32)


@triton.jit
def lengths_of(
    at, row_stride, count, WIDTH: tl.constexpr, PADDED: tl.constexpr, ROWS: tl.constexpr
):
    """What rows in memory are divided by, of which a part of the columns is held at a time."""
    PART: tl.constexpr = PADDED // 4 if PADDED >= 64 else PADDED
    r = tl.arange(0, ROWS)
    c = tl.arange(0, PART)
    total = tl.zeros((ROWS,), tl.float32)
    for first in tl.static_range(0, PADDED, PART):
        mask = (r < count)[:, None] & (c < WIDTH - first)[None, :]
        here = at + first + r[:, None] * row_stride + c[None, :]
        part = tl.load(here, mask=mask, other=0.0).to(tl.float32)
        total += tl.sum(part * part, axis=1)
    return tl.sqrt(total + EPSILON)


def dense_rows(x: torch.Tensor) -> torch.Tensor:
    """Without gaps inside a head's row."""
    return x if x.stride(2) == 1 else x.contiguous()


def strides(**tensors: torch.Tensor) -> dict[str, int]:
    """Of tokens and heads."""
    return {
        f"{name}_{axis}": tensor.stride(i)
        for name, tensor in tensors.items()
        for i, axis in enumerate(("token", "head"))
    }
