"""Inputs of the writes into a paged cache."""

from __future__ import annotations

from typing import Any

import torch

from ascend_ops_core.cases import Case, Inputs

BF16, F16, F32 = torch.bfloat16, torch.float16, torch.float32
I32, I64 = torch.int32, torch.int64


def _one(
    new: Inputs,
    tokens: int,
    heads: int,
    dim: int,
    dtype: torch.dtype = F32,
    *,
    blocks: int = 5,
    block_size: int = 16,
    padding: int = 0,
    slots: torch.dtype = I64,
) -> tuple[Any, ...]:
    places = new.permutation(blocks * block_size, slots)[:tokens]
    if padding:
        places = torch.cat((places, new.full(-1, padding, dtype=slots)))
    return (
        new.randn(blocks, block_size, heads, dim, dtype=dtype),
        new.randn(tokens + padding, heads, dim, dtype=dtype),
        places,
        padding > 0,
    )


def _full(new: Inputs) -> tuple[Any, ...]:
    """Every slot is written but the last, which padding must leave as it is."""
    cache, rows, _, _ = _one(new, 15, 1, 3, padding=7, blocks=1)
    return cache, rows, new.tensor([*range(15), *([-1] * 7)], I64), True


def _views(new: Inputs) -> tuple[Any, ...]:
    """Heads before positions in the cache; rows cut out of a fused projection."""
    cache = new.randn(4, 3, 8, 40)[..., 5:38].transpose(1, 2)
    rows = new.randn(9, 300)[:, 7:106].unflatten(1, (3, 33))
    slots = new.tensor([3, 31, -1, 8, 7, 0, -1, 16, 22] * 2, I32)[:9]
    return cache, rows, slots, True


def _unit_stride(new: Inputs) -> tuple[Any, ...]:
    cache, rows, slots, padded = _one(new, 3, 2, 130)
    return cache[..., :65], rows[..., ::2], slots, padded


def _bytes(new: Inputs) -> tuple[Any, ...]:
    cache, rows, slots, padded = _one(new, 6, 2, 63, padding=2, slots=I32)
    fp8 = torch.float8_e4m3fn
    return cache.to(fp8), rows.to(fp8), slots, padded


def _pair(new: Inputs, tokens: int, heads: int, dim: int, value_dim: int, **kwargs: Any) -> Any:
    key_cache, key, slots, padded = _one(new, tokens, heads, dim, **kwargs)
    value_cache, value, _, _ = _one(new, tokens, heads, value_dim, **kwargs)
    return key_cache, value_cache, key, value, slots, padded


def _pair_views(new: Inputs) -> tuple[Any, ...]:
    cache = new.randn(2, 4, 8, 3, 16)
    rows = new.randn(7, 2, 3, 16)
    slots = new.tensor([3, 31, -1, 8, 7, 0, -1], I32)
    return cache[0], cache[1], rows[:, 0], rows[:, 1], slots, True


CASES: dict[str, tuple[Case, ...]] = {
    "scatter_kv": (
        Case("no_rows", lambda new: _one(new, 0, 2, 8)),
        Case("one", lambda new: _one(new, 1, 1, 1, blocks=1, block_size=1)),
        Case("odd", lambda new: _one(new, 9, 3, 65, F16)),
        Case("all_padding", lambda new: _one(new, 0, 2, 63, padding=3)),
        Case("full_but_the_last", _full),
        Case("padded", lambda new: _one(new, 20, 1, 576, BF16, padding=11, slots=I32)),
        Case("views", _views),
        Case("unit_stride", _unit_stride),
        Case("bytes", _bytes),
        Case(
            "mla", lambda new: _one(new, 4096, 1, 576, BF16, blocks=64, block_size=128), large=True
        ),
        Case(
            "gqa_padded",
            lambda new: _one(new, 500, 8, 128, BF16, blocks=64, block_size=128, padding=12),
            large=True,
        ),
    ),
    "scatter_kv_pair": (
        Case("no_rows", lambda new: _pair(new, 0, 2, 8, 8)),
        Case("unpadded", lambda new: _pair(new, 9, 2, 16, 16, dtype=BF16)),
        Case("other_value_dim", lambda new: _pair(new, 7, 3, 24, 16, dtype=F16, slots=I32)),
        Case("padded", lambda new: _pair(new, 10, 2, 65, 63, padding=3)),
        Case("views", _pair_views),
        Case(
            "m3",
            lambda new: _pair(
                new, 1000, 4, 128, 128, dtype=BF16, blocks=64, block_size=128, padding=24
            ),
            large=True,
        ),
        Case(
            "m3_unpadded",
            lambda new: _pair(
                new, 1024, 4, 128, 128, dtype=BF16, blocks=64, block_size=128, slots=I32
            ),
            large=True,
        ),
    ),
}
