"""Matrix products for a CPU.

With few tokens a product is bound by reading the weights once; torch's GEMV reaches half of the
memory bandwidth at best. With many tokens torch's GEMM is right, except for bfloat16 on CPUs
without bfloat16 instructions, where weights become float32 as they are packed into panels.
"""

from __future__ import annotations

import functools

import numpy as np
import torch
from numba import njit, prange
from torch.nn import functional as F

from ascend_ops_core.cpu_numeric import FASTMATH, as_numpy, narrow, widen
from ascend_ops_core.cpu_panels import (
    add_product,
    fetched_ahead,
    pack_panel,
    pack_tile,
    packed_floats,
    panel_rows,
    panel_tokens,
)
from ascend_ops_core.cpu_products import ROWS_PER_TASK, product, widen_rows

# Measured crossover with torch's GEMM on two AVX-512 cores.
_FEW_ROWS = 16
# Floats of the tokens that are packed at once, and columns of a panel at a time, which stays in the
# second-level cache.
_PACKED, _COLUMNS = 1 << 22, 2048


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
        return _by_panels(x.unsqueeze(1), weight.unsqueeze(0)).squeeze(1)
    return F.linear(x, weight)


def grouped_linear(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """See :func:`ascend_ops_core.ops.linear.grouped_linear`."""
    tokens, groups, _ = x.shape
    if tokens <= _FEW_ROWS:
        out = x.new_empty((tokens, groups, weight.shape[1]))
        _few_grouped(as_numpy(x.contiguous()), as_numpy(weight), as_numpy(out))
        return out
    if x.dtype == torch.bfloat16 and not native_bf16():
        return _by_panels(x, weight)
    return torch.bmm(x.transpose(0, 1), weight.transpose(1, 2)).transpose(0, 1)


def _by_panels(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """``[T, G, N]`` from ``x [T, G, K]`` and ``weight [G, N, K]``."""
    tokens, groups, width = x.shape
    out = x.new_empty((tokens, groups, weight.shape[1]))
    given, rows = as_numpy(x.contiguous()), as_numpy(weight)
    at_once = max(1, _PACKED // (groups * width))
    for t in range(0, tokens, at_once):
        _product_many(given[t : t + at_once], rows, as_numpy(out)[t : t + at_once])
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


@njit(fastmath=FASTMATH, cache=True)
def _strip(tiles, tokens, w, first, n, panel, numbers, parts, out, g, column, then):  # type: ignore[no-untyped-def]
    """Fill ``out[:, g, column : column + n]`` with ``n`` weight rows; ``then`` is read next."""
    held, rows, width = panel_tokens(), panel_rows(), w.shape[1]
    count = (tokens + held - 1) // held
    parts[:] = 0
    for begin in range(0, width, _COLUMNS):
        end = min(width, begin + _COLUMNS)
        pack_panel(w, first, n, begin, end, numbers, panel)
        for tile in range(count):
            start = ((g * count + tile) * width + begin) * held
            soon = fetched_ahead(tile, w, then, n)
            add_product(tiles, start, panel, end - begin, parts, tile * held * rows, w, soon)
    for t in range(tokens):
        for j in range(n):
            out[t, g, column + j] = narrow(out, parts[t * rows + j])


@njit(fastmath=FASTMATH, parallel=True, cache=True)
def _product_many(x, weight, out):  # type: ignore[no-untyped-def]
    tokens, groups, width = x.shape
    n = weight.shape[1]
    held, rows = panel_tokens(), panel_rows()
    token_rows = x.reshape((tokens * groups, width))
    weight_rows = weight.reshape((groups * n, width))
    count = (tokens + held - 1) // held
    tiles = packed_floats(groups * count * held * width)
    for task in prange(groups * count):
        g = task // count
        t = (task - g * count) * held
        places = (np.arange(held) + t) * groups + g
        start = task * held * width
        pack_tile(token_rows, places, 0, min(held, tokens - t), held, tiles, start)
    strips = (n + rows - 1) // rows
    tasks = groups * strips
    for task in prange(tasks):
        g = task // strips
        column = (task - g * strips) * rows
        last = min(n, column + rows)
        panel = packed_floats(min(width, _COLUMNS) * rows)
        numbers = np.empty(rows, dtype=np.int64)
        parts = packed_floats(count * held * rows)
        first = g * n + column
        then = g * n + last if task + 1 < tasks else first
        _strip(
            tiles, tokens, weight_rows, first, last - column, panel, numbers, parts, out, g, column,
            then,
        )  # fmt: skip
