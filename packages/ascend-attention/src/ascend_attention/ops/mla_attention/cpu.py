"""Attention over paged latents for a CPU with few tokens: rows are read where they lie.

The definition copies a request's rows and makes a dozen torch calls for each request, on which a
decode step of short contexts spends more time than on the products.
"""

from __future__ import annotations

import numpy as np
import torch
from ascend_ops_core.cpu_numeric import FASTMATH, as_numpy, narrow, widen
from numba import njit, prange

from ascend_attention.cpu_softmax_tile import TILE, add_tile
from ascend_attention.ops.mla_cache.cpu import flat_rows

_DTYPES = (torch.float32, torch.bfloat16)
# With more tokens of a request the products are GEMMs.
_FEW_TOKENS = 16
# Tasks that a step is cut into at least, so that one token keeps several threads busy.
_LEAST_TASKS = 4


def supports(
    q_latent: torch.Tensor,
    q_rope: torch.Tensor,
    latents: torch.Tensor,
    ropes: torch.Tensor,
    block_table: torch.Tensor,
    request: torch.Tensor,
    position: torch.Tensor,
) -> bool:
    """A few tokens; float32 or bfloat16 throughout; values of a row side by side."""
    return (
        0 < q_latent.shape[0] <= _FEW_TOKENS
        and q_latent.dtype in _DTYPES
        and latents.dtype == q_latent.dtype
        and latents.numel() > 0
        and block_table.numel() > 0
        and all(x.stride(-1) == 1 for x in (q_latent, q_rope, latents, ropes, block_table))
    )


def mla_attention(
    q_latent: torch.Tensor,
    q_rope: torch.Tensor,
    latents: torch.Tensor,
    ropes: torch.Tensor,
    block_table: torch.Tensor,
    request: torch.Tensor,
    position: torch.Tensor,
    scale: float,
) -> tuple[torch.Tensor, torch.Tensor]:
    """See :func:`ascend_attention.ops.mla_attention.mla_attention`."""
    out = torch.empty(q_latent.shape, dtype=q_latent.dtype)
    lse = torch.empty(q_latent.shape[:2], dtype=torch.float32)
    inside = _attend(
        as_numpy(q_latent),
        as_numpy(q_rope),
        as_numpy(flat_rows(latents)),
        as_numpy(flat_rows(ropes)),
        latents.shape[1],
        latents.stride()[:2],
        ropes.stride()[:2],
        as_numpy(block_table),
        as_numpy(request.contiguous()),
        as_numpy(position.contiguous()),
        np.float32(scale),
        as_numpy(out),
        as_numpy(lse),
    )
    if not inside:
        raise IndexError(
            f"a token lies outside the {tuple(block_table.shape)} block table of requests with "
            f"{latents.shape[1]} rows per block"
        )
    return out, lse


@njit(fastmath=FASTMATH, parallel=True, cache=True)
def _attend(  # type: ignore[no-untyped-def]
    q_latent, q_rope, latents, ropes, per_block, over_latents, over_ropes, table, request,
    position, scale, out, lse,
):  # fmt: skip
    tokens, heads, rank = q_latent.shape
    rotary = q_rope.shape[2]
    width = rank + rotary
    for t in range(tokens):
        if position[t] >= 0 and (
            request[t] < 0
            or request[t] >= table.shape[0]
            or position[t] // per_block >= table.shape[1]
        ):
            return False
    parts = min(heads, (_LEAST_TASKS + tokens - 1) // tokens)
    for task in prange(tokens * parts):
        t = task // parts
        part = task - t * parts
        first = part * heads // parts
        held = (part + 1) * heads // parts - first
        query = np.empty((held, width), dtype=np.float32)
        for h in range(held):
            for d in range(rank):
                query[h, d] = widen(q_latent[t, first + h, d]) * scale
            for d in range(rotary):
                query[h, rank + d] = widen(q_rope[t, first + h, d]) * scale
        acc = np.zeros((held, rank), dtype=np.float32)
        top = np.full(held, np.float32(-np.inf), dtype=np.float32)
        total = np.zeros(held, dtype=np.float32)
        rows = np.empty((TILE, width), dtype=np.float32)
        weights = np.empty(TILE, dtype=np.float32)
        context = position[t] + 1
        for start in range(0, context, TILE):
            count = min(TILE, context - start)
            for r in range(count):
                column = (start + r) // per_block
                block = table[request[t], column]
                offset = start + r - column * per_block
                at = block * over_latents[0] + offset * over_latents[1]
                for d in range(rank):
                    rows[r, d] = widen(latents[at + d])
                at = block * over_ropes[0] + offset * over_ropes[1]
                for d in range(rotary):
                    rows[r, rank + d] = widen(ropes[at + d])
            # Rows beyond the context get no weight, so that all tiles are alike.
            for r in range(count, TILE):
                rows[r] = 0
            for h in range(held):
                add_tile(query[h], rows, rows, count, weights, acc[h], top, total, h)
        for h in range(held):
            if context > 0:
                for d in range(rank):
                    out[t, first + h, d] = narrow(out, acc[h, d] / total[h])
                lse[t, first + h] = top[h] + np.log(total[h])
            else:
                for d in range(rank):
                    out[t, first + h, d] = narrow(out, np.float32(0))
                lse[t, first + h] = np.float32(-np.inf)
    return True
