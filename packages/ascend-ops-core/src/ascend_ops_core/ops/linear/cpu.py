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

from ascend_ops_core.cpu_numeric import FASTMATH, as_numpy, narrow, widen
from ascend_ops_core.cpu_products import ROWS_PER_TASK, product, widen_rows

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
        product_few(as_numpy(x.contiguous()), as_numpy(weight), as_numpy(out))
        return out
    if x.dtype == torch.bfloat16 and not native_bf16():
        return _widened(x, weight)
    return F.linear(x, weight)


def grouped_linear(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """See :func:`ascend_ops_core.ops.linear.grouped_linear`."""
    tokens, groups, _ = x.shape
    if tokens <= _FEW_ROWS:
        out = x.new_empty((tokens, groups, weight.shape[1]))
        _few_grouped(as_numpy(x.contiguous()), as_numpy(weight), as_numpy(out))
        return out
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


@njit(fastmath=FASTMATH, parallel=True, cache=True)
def product_few(x, weight, out):  # type: ignore[no-untyped-def]
    tokens, width = x.shape
    wide = np.empty((tokens, width), dtype=np.float32)
    widen_rows(x, wide)
    rows = weight.shape[0]
    for task in prange((rows + ROWS_PER_TASK - 1) // ROWS_PER_TASK):
        first = task * ROWS_PER_TASK
        product(wide, 0, tokens, weight, first, min(rows, first + ROWS_PER_TASK), out, first)


@njit(fastmath=FASTMATH, parallel=True, cache=True)
def _few_grouped(x, weight, out):  # type: ignore[no-untyped-def]
    tokens, groups, width = x.shape
    wide = np.empty((groups, tokens, width), dtype=np.float32)
    for t in range(tokens):
        for g in range(groups):
            for k in range(width):
                wide[g, t, k] = widen(x[t, g, k])
    rows = weight.shape[1]
    strips = (rows + ROWS_PER_TASK - 1) // ROWS_PER_TASK
    for task in prange(groups * strips):
        g = task // strips
        first = (task - g * strips) * ROWS_PER_TASK
        last = min(rows, first + ROWS_PER_TASK)
        part = np.empty((tokens, last - first), dtype=np.float32)
        product(wide[g], 0, tokens, weight[g], first, last, part, 0)
        for t in range(tokens):
            for n in range(last - first):
                out[t, g, first + n] = narrow(out, part[t, n])
