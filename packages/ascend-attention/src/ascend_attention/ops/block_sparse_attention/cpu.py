"""Block-sparse attention for a CPU with few queries: blocks are read where they lie.

A block is widened once for all query heads that share its selection.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from ascend_ops_core.cpu_numeric import FASTMATH, as_numpy, narrow, widen
from numba import njit, prange

from ascend_attention.cpu_softmax_tile import TILE, add_tile

_DTYPES = (torch.float32, torch.bfloat16)
# Tasks that a step is cut into at least, so that one query keeps several threads busy.
_LEAST_TASKS = 4


def supports(query: torch.Tensor, key_cache: torch.Tensor, value_cache: torch.Tensor) -> bool:
    """Float32 or bfloat16; values of a row side by side."""
    return (
        query.dtype in _DTYPES
        and query.numel() > 0
        and key_cache.numel() > 0
        and key_cache.stride(-1) == value_cache.stride(-1) == 1
    )


def block_sparse_attention(
    query: torch.Tensor,
    key_cache: torch.Tensor,
    value_cache: torch.Tensor,
    selected: torch.Tensor,
    block_table: torch.Tensor,
    request: torch.Tensor,
    position: torch.Tensor,
    scale: float,
) -> tuple[torch.Tensor, torch.Tensor]:
    """See :func:`ascend_attention.ops.block_sparse_attention.block_sparse_attention`."""
    out = torch.empty(query.shape, dtype=query.dtype)
    lse = torch.empty(query.shape[:2], dtype=torch.float32)
    inside = _attend(
        as_numpy(query.contiguous()),
        *_flat(key_cache),
        *_flat(value_cache),
        key_cache.shape[1],
        as_numpy(selected.contiguous()),
        as_numpy(block_table.contiguous()),
        as_numpy(request.long()),
        as_numpy(position.long()),
        np.float32(scale),
        as_numpy(out),
        as_numpy(lse),
    )
    if not inside:
        raise IndexError(
            f"a selected block lies outside the {tuple(block_table.shape)} block table of requests "
            f"with {key_cache.shape[1]} rows per block"
        )
    return out, lse


def _flat(cache: torch.Tensor) -> tuple[Any, tuple[int, ...]]:
    """Cache as flat memory, since numba does not vectorise over unknown strides; its strides."""
    span = 1 + sum(
        (size - 1) * stride for size, stride in zip(cache.shape, cache.stride(), strict=True)
    )
    return as_numpy(cache.as_strided((span,), (1,))), cache.stride()[:3]


@njit(fastmath=FASTMATH, parallel=True, cache=True)
def _attend(  # type: ignore[no-untyped-def]
    query, keys, over_keys, values, over_values, page, selected, table, request, position, scale,
    out, lse,
):  # fmt: skip
    tokens, heads, width = query.shape
    groups, places = selected.shape[1], selected.shape[2]
    shared = heads // groups
    for t in range(tokens):
        if position[t] >= 0:
            if request[t] < 0 or request[t] >= table.shape[0]:
                return False
            for g in range(groups):
                for k in range(places):
                    if selected[t, g, k] < 0:
                        break
                    if selected[t, g, k] >= table.shape[1]:
                        return False
    parts = min(shared, (_LEAST_TASKS + tokens * groups - 1) // (tokens * groups))
    for task in prange(tokens * groups * parts):
        pair = task // parts
        part = task - pair * parts
        t = pair // groups
        g = pair - t * groups
        first = g * shared + part * shared // parts
        held = g * shared + (part + 1) * shared // parts - first
        wide = np.empty((held, width), dtype=np.float32)
        for h in range(held):
            for d in range(width):
                wide[h, d] = widen(query[t, first + h, d]) * scale
        acc = np.zeros((held, width), dtype=np.float32)
        top = np.full(held, np.float32(-np.inf), dtype=np.float32)
        total = np.zeros(held, dtype=np.float32)
        key_rows = np.zeros((TILE, width), dtype=np.float32)
        value_rows = np.zeros((TILE, width), dtype=np.float32)
        weights = np.empty(TILE, dtype=np.float32)
        for k in range(places):
            number = selected[t, g, k]
            if number < 0 or position[t] < 0:
                break
            block = np.int64(table[request[t], number])
            used = min(np.int64(page), position[t] + 1 - np.int64(number) * page)
            for start in range(0, used, TILE):
                count = min(TILE, used - start)
                at = block * over_keys[0] + start * over_keys[1] + g * over_keys[2]
                _widened(keys, at, over_keys[1], count, key_rows)
                at = block * over_values[0] + start * over_values[1] + g * over_values[2]
                _widened(values, at, over_values[1], count, value_rows)
                for h in range(held):
                    add_tile(wide[h], key_rows, value_rows, count, weights, acc[h], top, total, h)
        for h in range(held):
            if total[h] > 0:
                for d in range(width):
                    out[t, first + h, d] = narrow(out, acc[h, d] / total[h])
                lse[t, first + h] = top[h] + np.log(total[h])
            else:
                for d in range(width):
                    out[t, first + h, d] = narrow(out, np.float32(0))
                lse[t, first + h] = np.float32(-np.inf)
    return True


@njit(fastmath=FASTMATH, cache=True)
def _widened(flat, at, over_rows, count, rows):  # type: ignore[no-untyped-def]
    """Copy ``count`` rows; those behind them become zero, so that all tiles are alike."""
    width = rows.shape[1]
    for r in range(count):
        source = flat[at + r * over_rows : at + r * over_rows + width]
        for d in range(width):
            rows[r, d] = widen(source[d])
    for r in range(count, TILE):
        for d in range(width):
            rows[r, d] = np.float32(0)
