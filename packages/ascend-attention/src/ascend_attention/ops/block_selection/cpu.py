"""Scores and selection of blocks for a CPU: keys are read where they lie."""

from __future__ import annotations

import numpy as np
import torch
from ascend_ops_core.cpu_numeric import FASTMATH, as_numpy, widen
from numba import njit, prange

from ascend_attention.ops.block_selection.reference import INIT, LEAST, LOCAL
from ascend_attention.ops.mla_cache.cpu import flat_rows

_DTYPES = (torch.float32, torch.bfloat16)
# With more queries of a request the products are GEMMs.
_FEW_TOKENS = 16
_NONE = np.float32(-np.inf)
_LEAST, _INIT, _LOCAL = np.float32(LEAST), np.float32(INIT), np.float32(LOCAL)


def supports(query: torch.Tensor, key_cache: torch.Tensor, columns: int) -> bool:
    """A few float32 or bfloat16 queries, and keys with unit steps inside a row."""
    return (
        0 < query.shape[0] <= _FEW_TOKENS
        and columns > 0
        and query.dtype in _DTYPES
        and key_cache.stride(-1) == 1
        and key_cache.numel() > 0
    )


def block_scores(
    query: torch.Tensor,
    key_cache: torch.Tensor,
    block_table: torch.Tensor,
    request: torch.Tensor,
    position: torch.Tensor,
    columns: int,
    first_block: int,
    block_stride: int,
    init_blocks: int,
    local_blocks: int,
) -> torch.Tensor:
    """See :func:`ascend_attention.ops.block_selection.block_scores`."""
    out = torch.empty((*query.shape[:2], columns), dtype=torch.float32)
    inside = _score(
        as_numpy(query.contiguous()),
        as_numpy(flat_rows(key_cache)),
        key_cache.stride(0),
        key_cache.stride(1),
        key_cache.shape[1],
        as_numpy(block_table.contiguous()),
        as_numpy(request.long()),
        as_numpy(position.long()),
        first_block,
        block_stride,
        init_blocks,
        local_blocks,
        as_numpy(out),
    )
    if not inside:
        raise IndexError(
            f"a token lies outside the {tuple(block_table.shape)} block table of requests with "
            f"{key_cache.shape[1]} rows per block"
        )
    return out


def best_blocks(
    scores: torch.Tensor,
    ids: torch.Tensor | None,
    top_k: int,
    first_block: int,
    block_stride: int,
) -> tuple[torch.Tensor, torch.Tensor]:
    """See :func:`ascend_attention.ops.block_selection.best_blocks`."""
    shape = (*scores.shape[:2], top_k)
    chosen = torch.empty(shape, dtype=torch.int32)
    values = torch.empty(shape, dtype=torch.float32)
    given = scores.new_empty((0, 0), dtype=torch.int32) if ids is None else ids.flatten(0, 1)
    _best(
        as_numpy(scores.flatten(0, 1).contiguous()),
        as_numpy(given.contiguous()),
        ids is not None,
        first_block,
        block_stride,
        as_numpy(chosen.flatten(0, 1)),
        as_numpy(values.flatten(0, 1)),
    )
    return chosen, values


@njit(fastmath=FASTMATH, cache=True)
def _largest(query, flat, start, over_rows, count, rows, best):  # type: ignore[no-untyped-def]
    """Largest product of each head with ``count`` keys; ``rows [4, D]`` is scratch."""
    heads, width = query.shape
    for h in range(heads):
        best[h] = _LEAST
    for first in range(0, count, 4):
        some = min(4, count - first)
        for r in range(4):
            # A short last tile repeats its last key, which changes no maximum.
            at = start + (first + min(r, some - 1)) * over_rows
            key = flat[at : at + width]
            for d in range(width):
                rows[r, d] = widen(key[d])
        r0, r1, r2, r3 = rows[0], rows[1], rows[2], rows[3]
        for h in range(heads):
            q = query[h]
            a0 = np.float32(0)
            a1 = np.float32(0)
            a2 = np.float32(0)
            a3 = np.float32(0)
            for d in range(width):
                v = q[d]
                a0 += v * r0[d]
                a1 += v * r1[d]
                a2 += v * r2[d]
                a3 += v * r3[d]
            # A comparison with NaN is false.
            top = best[h]
            top = a0 if a0 > top else top
            top = a1 if a1 > top else top
            top = a2 if a2 > top else top
            best[h] = a3 if a3 > top else top


@njit(fastmath=FASTMATH, parallel=True, cache=True)
def _score(  # type: ignore[no-untyped-def]
    query, flat, over_blocks, over_rows, page, table, request, position, first_block,
    block_stride, init_blocks, local_blocks, out,
):  # fmt: skip
    tokens, heads, width = query.shape
    columns = out.shape[2]
    for t in range(tokens):
        if position[t] >= 0 and (
            request[t] < 0 or request[t] >= table.shape[0] or position[t] // page >= table.shape[1]
        ):
            return False
    for task in prange(tokens * columns):
        t = task // columns
        c = task - t * columns
        number = first_block + c * block_stride
        seen = position[t] // page + 1 if position[t] >= 0 else 0
        if number >= seen or number >= seen - local_blocks or number < init_blocks:
            value = _INIT
            if number >= seen - local_blocks:
                value = _LOCAL
            if number >= seen:
                value = _NONE
            for h in range(heads):
                out[t, h, c] = value
        else:
            wide = np.empty((heads, width), dtype=np.float32)
            for h in range(heads):
                for d in range(width):
                    wide[h, d] = widen(query[t, h, d])
            rows = np.empty((4, width), dtype=np.float32)
            best = np.empty(heads, dtype=np.float32)
            start = np.int64(table[request[t], number]) * over_blocks
            count = min(page, position[t] - number * page + 1)
            _largest(wide, flat, start, over_rows, count, rows, best)
            for h in range(heads):
                out[t, h, c] = best[h]
    return True


@njit(parallel=True, cache=True)
def _best(scores, ids, given, first_block, block_stride, chosen, values):  # type: ignore[no-untyped-def]
    rows, candidates = scores.shape
    top_k = chosen.shape[1]
    for r in prange(rows):
        best, kept = values[r], chosen[r]
        for k in range(top_k):
            best[k] = _NONE
            kept[k] = -1
        count = 0
        for c in range(candidates):
            score = scores[r, c]
            number = ids[r, c] if given else np.int32(first_block + c * block_stride)
            if score > _NONE and number >= 0:
                worst = top_k - 1
                if count < top_k or _before(score, number, best[worst], kept[worst]):
                    place = min(count, worst)
                    while place > 0 and _before(score, number, best[place - 1], kept[place - 1]):
                        best[place] = best[place - 1]
                        kept[place] = kept[place - 1]
                        place -= 1
                    best[place] = score
                    kept[place] = number
                    count = min(count + 1, top_k)


@njit(cache=True)
def _before(score, number, other, other_number):  # type: ignore[no-untyped-def]
    """Whether a block comes before another: a larger score, or as large and a lower number."""
    if score == other:
        return number < other_number
    return score > other
