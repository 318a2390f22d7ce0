"""The MLA cache's rows on a CPU: norm, rotation and write in one pass over a token."""

from __future__ import annotations

import numpy as np
import torch
from ascend_ops_core.cpu_numeric import FASTMATH, as_numpy, narrow, widen
from numba import njit, prange

_DTYPES = (torch.float32, torch.bfloat16)


def supports(
    kv: torch.Tensor,
    weight: torch.Tensor,
    eps: float,
    cos: torch.Tensor,
    sin: torch.Tensor,
    latents: torch.Tensor,
    ropes: torch.Tensor,
    block: torch.Tensor,
    offset: torch.Tensor,
    interleaved: bool,
    split: bool,
) -> bool:
    """Interleaved pairs that stay so; float32 or bfloat16; values of a row side by side."""
    return (
        interleaved
        and not split
        and kv.dtype in _DTYPES
        and latents.dtype in _DTYPES
        and latents.numel() > 0
        and all(x.stride(-1) == 1 for x in (kv, latents, ropes))
        and all(x.is_contiguous() for x in (weight, cos, sin))
    )


def kv_rmsnorm_rope_cache(
    kv: torch.Tensor,
    weight: torch.Tensor,
    eps: float,
    cos: torch.Tensor,
    sin: torch.Tensor,
    latents: torch.Tensor,
    ropes: torch.Tensor,
    block: torch.Tensor,
    offset: torch.Tensor,
    interleaved: bool,
    split: bool,
) -> None:
    """See :func:`ascend_attention.ops.mla_cache.kv_rmsnorm_rope_cache`."""
    inside = _write(
        as_numpy(kv),
        as_numpy(weight),
        np.float32(eps),
        as_numpy(cos),
        as_numpy(sin),
        as_numpy(flat_rows(latents)),
        as_numpy(flat_rows(ropes)),
        latents.shape[0],
        latents.shape[1],
        latents.stride()[:2],
        ropes.stride()[:2],
        as_numpy(block.contiguous()),
        as_numpy(offset.contiguous()),
    )
    if not inside:
        raise IndexError(
            f"a row lies outside caches of {latents.shape[0]} blocks of {latents.shape[1]} rows; "
            "nothing of it was written"
        )


def flat_rows(cache: torch.Tensor) -> torch.Tensor:
    """The memory from a cache's first value to its last, of unit stride, which numba vectorises."""
    blocks, rows, width = cache.shape
    span = (blocks - 1) * cache.stride(0) + (rows - 1) * cache.stride(1) + width
    return cache.as_strided((span,), (1,))


@njit(fastmath=FASTMATH, parallel=True, cache=True)
def _write(  # type: ignore[no-untyped-def]
    kv, weight, eps, cos, sin, latents, ropes, blocks, per_block, over_latents, over_ropes,
    block, offset,
):  # fmt: skip
    tokens, rank = kv.shape[0], weight.shape[0]
    for t in range(tokens):
        if block[t] >= blocks or offset[t] >= per_block:
            return False
    for t in prange(tokens):
        if block[t] >= 0 and offset[t] >= 0:
            row = kv[t]
            total = np.float32(0)
            for d in range(rank):
                value = widen(row[d])
                total += value * value
            scale = np.float32(1) / np.sqrt(total / np.float32(rank) + eps)
            start = block[t] * over_latents[0] + offset[t] * over_latents[1]
            target = latents[start : start + rank]
            for d in range(rank):
                target[d] = narrow(latents, widen(row[d]) * scale * weight[d])
            pairs = cos.shape[1]
            start = block[t] * over_ropes[0] + offset[t] * over_ropes[1]
            target = ropes[start : start + 2 * pairs]
            for p in range(pairs):
                a = widen(row[rank + 2 * p])
                b = widen(row[rank + 2 * p + 1])
                target[2 * p] = narrow(ropes, a * cos[t, p] - b * sin[t, p])
                target[2 * p + 1] = narrow(ropes, b * cos[t, p] + a * sin[t, p])
    return True
