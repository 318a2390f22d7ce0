"""Matrix products for a CPU.

With few tokens a product is bound by reading the weights once; torch's GEMV reaches half of the
memory bandwidth at best. With many tokens torch's GEMM is right, except for bfloat16 on CPUs
without bfloat16 instructions, where widening the weights first is many times faster.
"""

from __future__ import annotations

import functools

import numpy as np
import torch
from numba import njit, prange
from torch.nn import functional as F

from ascend_ops_core.cpu_numeric import FASTMATH, as_numpy, bf16_to_f32, f32_to_bf16

# Measured crossover with torch's GEMM on two AVX-512 cores.
_FEW_ROWS = 16
# bfloat16 weights widened at once, so that a large matrix never has a full float32 copy.
_WIDEN_ELEMENTS = 1 << 22


def supports(x: torch.Tensor, weight: torch.Tensor) -> bool:
    """Equal float32 or bfloat16 dtypes, shapes that fit, and a contiguous weight."""
    return (
        x.dtype == weight.dtype
        and x.shape[-1] == weight.shape[-1]
        and x.shape[1:-1] == weight.shape[:-2]
        and x.dtype in (torch.float32, torch.bfloat16)
        and weight.is_contiguous()
        and x.numel() > 0
        and weight.numel() > 0
    )


@functools.cache
def native_bf16() -> bool:
    """True when torch multiplies bfloat16 in hardware here.

    torch's own capability counts as well as the CPU's, since users may lower it.
    """
    wide = torch.backends.cpu.get_cpu_capability().startswith(("AVX512", "AMX"))
    return wide and bool(
        torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported()
    )


def linear(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """See :func:`ascend_ops_core.ops.linear.linear`."""
    if x.shape[0] <= _FEW_ROWS:
        out = x.new_empty((x.shape[0], weight.shape[0]))
        kernel = _few_bf16 if x.dtype == torch.bfloat16 else _few_f32
        kernel(as_numpy(x.float().contiguous()), as_numpy(weight), as_numpy(out))
        return out
    if x.dtype == torch.bfloat16 and not native_bf16():
        return _widened(x, weight)
    return F.linear(x, weight)


def grouped_linear(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """See :func:`ascend_ops_core.ops.linear.grouped_linear`."""
    tokens, groups, _ = x.shape
    if tokens <= _FEW_ROWS:
        # Rows of one group side by side: a strided row would keep the kernel from vectorising.
        rows = x.transpose(0, 1).float().contiguous()
        out = x.new_empty((groups, tokens, weight.shape[1]))
        kernel = _few_grouped_bf16 if x.dtype == torch.bfloat16 else _few_grouped_f32
        kernel(as_numpy(rows), as_numpy(weight), as_numpy(out))
        return out.transpose(0, 1)
    if x.dtype == torch.bfloat16 and not native_bf16():
        return torch.stack([_widened(x[:, g], weight[g]) for g in range(groups)], dim=1)
    return torch.bmm(x.transpose(0, 1), weight.transpose(1, 2)).transpose(0, 1)


def _widened(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    wide = x.float()
    rows = max(1, _WIDEN_ELEMENTS // weight.shape[1])
    out = x.new_empty((x.shape[0], weight.shape[0]))
    for start in range(0, weight.shape[0], rows):
        part = weight[start : start + rows]
        out[:, start : start + rows] = F.linear(wide, part.float())
    return out


@njit(fastmath=FASTMATH, cache=True)
def _row_f32(x, w, out, n):  # type: ignore[no-untyped-def]
    """One output column for all tokens; four tokens share each pass over the weight row."""
    tokens, width = x.shape
    t = 0
    while t + 4 <= tokens:
        x0, x1, x2, x3 = x[t], x[t + 1], x[t + 2], x[t + 3]
        a0 = np.float32(0)
        a1 = np.float32(0)
        a2 = np.float32(0)
        a3 = np.float32(0)
        for k in range(width):
            v = w[k]
            a0 += x0[k] * v
            a1 += x1[k] * v
            a2 += x2[k] * v
            a3 += x3[k] * v
        out[t, n] = a0
        out[t + 1, n] = a1
        out[t + 2, n] = a2
        out[t + 3, n] = a3
        t += 4
    while t < tokens:
        xt = x[t]
        a0 = np.float32(0)
        for k in range(width):
            a0 += xt[k] * w[k]
        out[t, n] = a0
        t += 1


@njit(fastmath=FASTMATH, cache=True)
def _row_bf16(x, w, out, n):  # type: ignore[no-untyped-def]
    """As :func:`_row_f32`, with a bfloat16 weight row and output."""
    tokens, width = x.shape
    t = 0
    while t + 4 <= tokens:
        x0, x1, x2, x3 = x[t], x[t + 1], x[t + 2], x[t + 3]
        a0 = np.float32(0)
        a1 = np.float32(0)
        a2 = np.float32(0)
        a3 = np.float32(0)
        for k in range(width):
            v = bf16_to_f32(w[k])
            a0 += x0[k] * v
            a1 += x1[k] * v
            a2 += x2[k] * v
            a3 += x3[k] * v
        out[t, n] = f32_to_bf16(a0)
        out[t + 1, n] = f32_to_bf16(a1)
        out[t + 2, n] = f32_to_bf16(a2)
        out[t + 3, n] = f32_to_bf16(a3)
        t += 4
    while t < tokens:
        xt = x[t]
        a0 = np.float32(0)
        for k in range(width):
            a0 += xt[k] * bf16_to_f32(w[k])
        out[t, n] = f32_to_bf16(a0)
        t += 1


@njit(fastmath=FASTMATH, parallel=True, cache=True)
def _few_f32(x, weight, out):  # type: ignore[no-untyped-def]
    for n in prange(weight.shape[0]):
        _row_f32(x, weight[n], out, n)


@njit(fastmath=FASTMATH, parallel=True, cache=True)
def _few_bf16(x, weight, out):  # type: ignore[no-untyped-def]
    for n in prange(weight.shape[0]):
        _row_bf16(x, weight[n], out, n)


@njit(fastmath=FASTMATH, parallel=True, cache=True)
def _few_grouped_f32(x, weight, out):  # type: ignore[no-untyped-def]
    groups, width, _ = weight.shape
    for i in prange(groups * width):
        g = i // width
        _row_f32(x[g], weight[g, i - g * width], out[g], i - g * width)


@njit(fastmath=FASTMATH, parallel=True, cache=True)
def _few_grouped_bf16(x, weight, out):  # type: ignore[no-untyped-def]
    groups, width, _ = weight.shape
    for i in prange(groups * width):
        g = i // width
        _row_bf16(x[g], weight[g, i - g * width], out[g], i - g * width)
