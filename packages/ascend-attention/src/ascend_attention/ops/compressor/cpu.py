"""State rows and their pooling on a CPU.

The product of a few tokens adds the position bias itself; windows are pooled where they lie.
"""

from __future__ import annotations

import numpy as np
import torch
from ascend_ops_core.cpu_numeric import FASTMATH, as_numpy, exp_f32, widen
from ascend_ops_core.cpu_products import ROWS_PER_TASK, product, widen_rows
from ascend_ops_core.ops.linear import linear
from numba import njit, prange

# With more tokens the product is a GEMM.
_FEW_TOKENS = 16


def supports(hidden: torch.Tensor, wkv_wgate: torch.Tensor, ape: torch.Tensor) -> bool:
    """Contiguous float32 or bfloat16 tokens, weights of their dtype, a float32 bias."""
    return (
        hidden.shape[0] > 0
        and hidden.dtype in (torch.float32, torch.bfloat16)
        and hidden.is_contiguous()
        and wkv_wgate.dtype == hidden.dtype
        and wkv_wgate.is_contiguous()
        and ape.dtype == torch.float32
        and ape.is_contiguous()
    )


def project_states(
    hidden: torch.Tensor, wkv_wgate: torch.Tensor, ape: torch.Tensor, position: torch.Tensor
) -> torch.Tensor:
    """See :func:`ascend_attention.ops.compressor.project_states`."""
    out = torch.empty((hidden.shape[0], wkv_wgate.shape[0]), dtype=torch.float32)
    if hidden.shape[0] > _FEW_TOKENS:
        rows = linear(hidden, wkv_wgate)
        _add_bias(as_numpy(rows), as_numpy(ape), as_numpy(position.contiguous()), as_numpy(out))
        return out
    _project(
        as_numpy(hidden),
        as_numpy(wkv_wgate),
        as_numpy(ape),
        as_numpy(position.contiguous()),
        as_numpy(out),
    )
    return out


@njit(fastmath=FASTMATH, parallel=True, cache=True)
def _project(hidden, weight, ape, position, out):  # type: ignore[no-untyped-def]
    tokens = hidden.shape[0]
    ratio, series = ape.shape
    wide = np.empty(hidden.shape, dtype=np.float32)
    widen_rows(hidden, wide)
    rows = weight.shape[0]
    for task in prange((rows + ROWS_PER_TASK - 1) // ROWS_PER_TASK):
        first = task * ROWS_PER_TASK
        last = min(rows, first + ROWS_PER_TASK)
        product(wide, 0, tokens, weight, first, last, out, first)
        for t in range(tokens):
            for n in range(max(first, series), last):
                out[t, n] += ape[position[t] % ratio, n - series]


@njit(fastmath=FASTMATH, parallel=True, cache=True)
def _add_bias(rows, ape, position, out):  # type: ignore[no-untyped-def]
    ratio, series = ape.shape
    for t in prange(rows.shape[0]):
        bias = ape[position[t] % ratio]
        for d in range(series):
            out[t, d] = widen(rows[t, d])
            out[t, series + d] = widen(rows[t, series + d]) + bias[d]


def supports_windows(state_cache: torch.Tensor) -> bool:
    """A cache whose rows have no gaps inside."""
    return state_cache.numel() > 0 and state_cache.stride(-1) == 1


def compress_paged_windows(
    state_cache: torch.Tensor,
    block: torch.Tensor,
    offset: torch.Tensor,
    first_entry: torch.Tensor,
    overlap: int,
) -> torch.Tensor:
    """See :func:`ascend_attention.ops.compressor.compress_paged_windows`."""
    blocks, rows, width = state_cache.shape
    over_blocks, over_rows, _ = state_cache.stride()
    span = (blocks - 1) * over_blocks + (rows - 1) * over_rows + width
    out = torch.empty((block.shape[0], width // (2 * overlap)), dtype=torch.float32)
    inside = _pool_paged(
        as_numpy(state_cache.as_strided((span,), (1,))),
        (over_blocks, over_rows, blocks, rows, block.shape[1] // overlap),
        as_numpy(block.long().contiguous()),
        as_numpy(offset.long().contiguous()),
        as_numpy(first_entry.contiguous()),
        as_numpy(out),
    )
    if not inside:
        raise IndexError(f"a row lies outside a cache of {blocks} blocks of {rows} rows")
    return out


@njit(fastmath=FASTMATH, error_model="numpy", cache=True)
def pool_window(memory, over_blocks, over_rows, block, offset, first, ratio, out):  # type: ignore[no-untyped-def]
    """Softmax over the states of one entry, each channel for itself; no states make zeros.

    Args:
        memory: a paged cache of states, flat.
        over_blocks: values from one of its blocks to the next.
        over_rows: values from one of its rows to the next.
        block: ``[overlap * ratio]``, negative for rows that do not exist.
        offset: the same shape.
        first: whether the entry has no previous window.
        ratio: tokens of a window.
        out: ``[D]`` float32, filled.
    """
    rows, width = block.shape[0], out.shape[0]
    series = width if rows == ratio else 2 * width
    top = np.full(width, -np.inf, dtype=np.float32)
    total = np.zeros(width, dtype=np.float32)
    for d in range(width):
        out[d] = np.float32(0)
    start = rows - ratio if first else 0
    found = False
    for r in range(start, rows):
        if block[r] >= 0:
            found = True
            shift = width if r >= ratio else 0
            at = block[r] * over_blocks + offset[r] * over_rows + series + shift
            gate = memory[at : at + width]
            for d in range(width):
                top[d] = max(top[d], gate[d])
    if not found:
        return
    for r in range(start, rows):
        if block[r] >= 0:
            shift = width if r >= ratio else 0
            at = block[r] * over_blocks + offset[r] * over_rows + shift
            values = memory[at : at + width]
            gate = memory[at + series : at + series + width]
            for d in range(width):
                weight = exp_f32(gate[d] - top[d])
                total[d] += weight
                out[d] += weight * values[d]
    for d in range(width):
        out[d] /= total[d]


@njit(fastmath=FASTMATH, parallel=True, cache=True)
def _pool_paged(memory, sizes, block, offset, first, out):  # type: ignore[no-untyped-def]
    over_blocks, over_rows, blocks, rows, ratio = sizes
    entries, window = block.shape
    for n in range(entries):
        for r in range(window):
            if block[n, r] >= blocks or (block[n, r] >= 0 and not 0 <= offset[n, r] < rows):
                return False
    for n in prange(entries):
        pool_window(memory, over_blocks, over_rows, block[n], offset[n], first[n], ratio, out[n])
    return True
