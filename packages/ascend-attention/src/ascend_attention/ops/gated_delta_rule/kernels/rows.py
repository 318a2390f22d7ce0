"""Pieces that the kernels of the gated delta rule share."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

EPSILON = tl.constexpr(1e-6)


@triton.jit
def load_rows(at, row_stride, count, WIDTH: tl.constexpr, PADDED: tl.constexpr, ROWS: tl.constexpr):
    """``[ROWS, PADDED]`` float32; zeros behind ``count``."""
    r = tl.arange(0, ROWS)
    d = tl.arange(0, PADDED)
    mask = (r < count)[:, None] & (d < WIDTH)[None, :]
    return tl.load(at + r[:, None] * row_stride + d[None, :], mask=mask, other=0.0).to(tl.float32)


@triton.jit
def lengths(rows, NORMALIZE: tl.constexpr):
    """What rows are divided by."""
    if NORMALIZE:
        return tl.sqrt(tl.sum(rows * rows, axis=1) + EPSILON)
    return tl.full((rows.shape[0],), 1.0, tl.float32)


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
