"""Inputs of the MLA cache's writes: padding, strided rows, caches in slabs."""

from __future__ import annotations

from typing import Any

import torch
from ascend_ops_core.cases import Case, Inputs

from ascend_attention.ops.paged_rows.cases import cache_in_slab

BF16, F16, F32 = torch.bfloat16, torch.float16, torch.float32
I32, I64 = torch.int32, torch.int64


def writes(
    new: Inputs,
    tokens: int,
    rank: int,
    rotary: int,
    dtype: torch.dtype = F32,
    *,
    cache_dtype: torch.dtype | None = None,
    blocks: int = 6,
    rows: int = 4,
    padding: int = 0,
    index: torch.dtype = I64,
    interleaved: bool = True,
    split: bool = False,
    slab: bool = True,
    gap: int = 0,
) -> tuple[Any, ...]:
    """``padding`` tokens in every third place are not written; rows may have gaps between them."""
    angle = new.rand(tokens, rotary // 2) * 6
    number = new.permutation(blocks * rows)[:tokens]
    block, offset = (number // rows).to(index), (number % rows).to(index)
    block[: 3 * padding : 3] = -1
    offset[1 : 3 * padding : 3] = -1
    kept = cache_dtype or dtype
    if slab:
        latents = cache_in_slab(new, blocks, rows, rank, kept)
        ropes = cache_in_slab(new, blocks, rows, rotary, kept)
    else:
        latents = new.randn(blocks, rows, rank, dtype=kept)
        ropes = new.randn(blocks, rows, rotary, dtype=kept)
    return (
        new.randn(tokens, gap + rank + rotary, dtype=dtype)[:, gap:],
        new.rand(rank) + 0.5,
        1e-6,
        angle.cos(),
        angle.sin(),
        latents,
        ropes,
        block,
        offset,
        interleaved,
        split,
    )


def _v3(new: Inputs, tokens: int, **given: Any) -> tuple[Any, ...]:
    return writes(new, tokens, 512, 64, BF16, blocks=40, rows=128, slab=False, **given)


CASES: dict[str, tuple[Case, ...]] = {
    "kv_rmsnorm_rope_cache": (
        Case("no_tokens", lambda new: writes(new, 0, 8, 4)),
        Case("one", lambda new: writes(new, 1, 8, 2), scale=2),
        Case("padding", lambda new: writes(new, 17, 33, 6, padding=4, index=I32), scale=2),
        Case("half_split", lambda new: writes(new, 9, 20, 10, interleaved=False), scale=2),
        Case("between_gaps", lambda new: writes(new, 7, 24, 8, BF16, gap=5, padding=2), scale=2),
        Case("half", lambda new: writes(new, 5, 65, 16, F16), scale=2),
        Case("narrowed", lambda new: writes(new, 5, 16, 8, cache_dtype=BF16), scale=2),
        Case("v3_small", lambda new: _v3(new, 3, padding=1), scale=2),
        Case("split", lambda new: writes(new, 11, 20, 10, padding=2, split=True), scale=2),
        Case("v3_split", lambda new: _v3(new, 5, padding=1, split=True), scale=4),
        Case(
            "v3_half_split_split",
            lambda new: _v3(new, 4, gap=1536, interleaved=False, split=True),
            scale=4,
        ),
        Case("v3", lambda new: _v3(new, 4096), large=True),
        Case("v3_split_large", lambda new: _v3(new, 4096, split=True), large=True),
        Case("v3_half_split", lambda new: _v3(new, 64, interleaved=False), large=True),
    ),
}
