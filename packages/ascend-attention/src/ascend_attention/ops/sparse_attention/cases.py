"""Inputs of the sparse attention: strided caches, masks, padding, and NaN where nothing is read."""

from __future__ import annotations

from typing import Any

import torch
from ascend_ops_core.cases import Case, Inputs

from ascend_attention.ops.packed_rows.cases import packed_slab
from ascend_attention.ops.packed_rows.layout import groups_of
from ascend_attention.ops.paged_rows.cases import cache_in_slab

BF16, F16, F32 = torch.bfloat16, torch.float16, torch.float32
I32, I64 = torch.int32, torch.int64


def _arguments(
    new: Inputs,
    tokens: int,
    heads: int,
    width: int,
    sources: list[tuple[int, float | None]],
    dtype: torch.dtype = F32,
    *,
    cache_dtype: torch.dtype | None = None,
    index: torch.dtype = I64,
    blocks: int = 5,
    rows: int = 4,
    sink: float = 1.0,
    scale: float | None = None,
) -> tuple[Any, ...]:
    """Sources are (rows per token, share that is valid, or None for no mask).

    The last block is NaN; what is not valid points there.
    """
    caches, places, offsets, masks = [], [], [], []
    for count, share in sources:
        cache = cache_in_slab(new, blocks, rows, width, cache_dtype or dtype)
        cache[-1] = float("nan")
        block = new.randint(0, blocks - 1, tokens, count, dtype=index)
        mask = None
        if share is not None:
            mask = new.rand(tokens, count) < share
            block = torch.where(mask, block, blocks - 1)
        caches.append(cache)
        places.append(block.to(index))
        offsets.append(new.randint(0, rows, tokens, count, dtype=index))
        masks.append(mask)
    return (
        new.randn(tokens, heads, width, dtype=dtype),
        caches,
        places,
        offsets,
        masks,
        new.randn(heads, scale=sink),
        width**-0.5 if scale is None else scale,
    )


def _padding(new: Inputs) -> tuple[Any, ...]:
    """Padding without a mask, a token of padding alone, and a mask beside padding."""
    query, caches, blocks, offsets, masks, sinks, scale = _arguments(
        new, 4, 3, 16, [(5, None), (7, 0.5)]
    )
    blocks[0][0, 1:4] = -1
    offsets[0][1, ::2] = -1
    blocks[1][2] = -1
    blocks[0][3] = -1
    blocks[1][3] = -1
    return query, caches, blocks, offsets, masks, sinks, scale


def _views(new: Inputs) -> tuple[Any, ...]:
    """Heads of a wider projection, index tensors with gaps."""
    _, caches, blocks, offsets, masks, sinks, scale = _arguments(
        new, 6, 5, 24, [(9, 0.7)], BF16, index=I32
    )
    query = new.randn(6, 8, 40, dtype=BF16)[:, 2:7, 9:33]
    blocks, offsets = ([part[:, ::2] for part in parts] for parts in (blocks, offsets))
    masks = [None if mask is None else mask[:, ::2] for mask in masks]
    return query, caches, blocks, offsets, masks, sinks, scale


def _from_both_ends(new: Inputs) -> tuple[Any, ...]:
    """A window filled from its end and entries from their start, by a little more each token."""
    query, caches, blocks, offsets, _, sinks, scale = _arguments(
        new, 5, 3, 300, [(40, None), (70, None)]
    )
    filled = new.tensor([0, 1, 9, 33, 40], I64)[:, None]
    back = torch.arange(39, -1, -1, device=new.device)
    ahead = torch.arange(70, device=new.device)
    return query, caches, blocks, offsets, [back < filled, ahead < filled], sinks, scale


def _sinks(new: Inputs) -> tuple[Any, ...]:
    """Sinks that take nothing and everything."""
    *rest, _, scale = _arguments(new, 3, 5, 16, [(20, 0.8)])
    return *rest, new.tensor([-1e30, float("-inf"), 0.0, 30.0, 1e30], F32), scale


def _records(new: Inputs, blocks: int, rows: int, width: int, rotary: int) -> torch.Tensor:
    """A cache of packed rows of about the size of normal values; the last block is NaN."""
    quantised, groups = width - rotary, groups_of(width, rotary)
    codes = new.randint(0x28, 0x48, blocks, rows, quantised, dtype=torch.uint8)
    sign = new.randint(0, 2, blocks, rows, quantised, dtype=torch.uint8)
    rotated = new.randn(blocks, rows, rotary, dtype=BF16)
    scales = new.randint(124, 129, blocks, rows, groups, dtype=torch.uint8)
    packed = packed_slab(new, blocks, rows, width, rotary)
    record = torch.cat((codes + 128 * sign, rotated.view(torch.uint8), scales), dim=-1)
    packed[:-1, :, : width + rotary + groups] = record[:-1]
    return packed


def _packed(
    new: Inputs,
    tokens: int,
    heads: int,
    width: int,
    rotary: int,
    sources: list[tuple[int, float | None]],
    dtype: torch.dtype = F32,
    *,
    blocks: int = 5,
    rows: int = 4,
    index: torch.dtype = I64,
) -> tuple[Any, ...]:
    """As :func:`_arguments`, with caches of packed rows."""
    query, _, *rest = _arguments(
        new, tokens, heads, width, sources, dtype, blocks=blocks, rows=rows, index=index
    )
    caches = [_records(new, blocks, rows, width, rotary) for _ in sources]
    return query, caches, *rest, rotary


def _packed_padding(new: Inputs) -> tuple[Any, ...]:
    """Padding without a mask, and a token of padding alone."""
    query, caches, blocks, offsets, *rest = _packed(new, 4, 3, 80, 16, [(5, None), (7, 0.5)])
    blocks[0][0, 1:4] = -1
    offsets[0][1, ::2] = -1
    blocks[0][3] = -1
    blocks[1][3] = -1
    return query, caches, blocks, offsets, *rest


def _v4_packed(new: Inputs, tokens: int, heads: int, entries: int) -> tuple[Any, ...]:
    """The same layers on A5."""
    sources: list[tuple[int, float | None]] = [(count, 0.9) for count in (128, entries) if count]
    return _packed(new, tokens, heads, 512, 64, sources, BF16, blocks=64, rows=128)


def _v4(new: Inputs, tokens: int, heads: int, entries: int, masked: bool = True) -> tuple[Any, ...]:
    """A layer of DeepSeek-V4: a window of 128 rows, and compressed entries if any."""
    share = 0.9 if masked else None
    sources = [(128, share)] + ([(entries, share)] if entries else [])
    return _arguments(new, tokens, heads, 512, sources, BF16, blocks=64, rows=128)


CASES: dict[str, tuple[Case, ...]] = {
    "sparse_attention": (
        Case("no_tokens", lambda new: _arguments(new, 0, 3, 16, [(5, 0.5)])),
        Case("no_sources", lambda new: _arguments(new, 2, 3, 16, [])),
        Case("no_rows", lambda new: _arguments(new, 2, 3, 16, [(0, None), (0, None)])),
        Case("one", lambda new: _arguments(new, 1, 1, 1, [(1, None)])),
        Case("odd", lambda new: _arguments(new, 3, 17, 65, [(33, 0.6)])),
        Case(
            "empty_between",
            lambda new: _arguments(new, 5, 3, 63, [(4, 0.5), (0, None), (7, 0.5)], F16, index=I32),
        ),
        Case("no_valid_row", lambda new: _arguments(new, 2, 3, 16, [(40, 0.0)])),
        Case("padding", _padding),
        Case("views", _views),
        Case("sinks", _sinks),
        Case("many_splits", lambda new: _arguments(new, 1, 3, 300, [(200, 0.5)], BF16)),
        Case("split_of_padding", lambda new: _arguments(new, 1, 2, 300, [(40, 0.0), (60, None)])),
        Case("from_both_ends", _from_both_ends),
        Case("many_tokens", lambda new: _arguments(new, 50, 2, 16, [(3, 0.7)])),
        Case("narrow_cache", lambda new: _arguments(new, 2, 3, 32, [(9, 0.7)], cache_dtype=BF16)),
        Case(
            "large_logits",
            lambda new: _arguments(new, 3, 3, 16, [(20, 0.8)], sink=1e3, scale=300.0),
            scale=10,
        ),
        Case("v4_rows", lambda new: _arguments(new, 1, 4, 512, [(5, None), (6, 0.7)], BF16)),
        Case("packed_one", lambda new: _packed(new, 1, 1, 2, 0, [(1, None)])),
        Case("packed", lambda new: _packed(new, 3, 17, 64, 16, [(33, 0.6), (9, None)]), scale=8),
        Case("packed_odd", lambda new: _packed(new, 5, 3, 201, 7, [(7, 0.5)], BF16, index=I32)),
        Case("packed_padding", _packed_padding),
        Case(
            "packed_no_rotary",
            lambda new: _packed(new, 2, 3, 128, 0, [(20, 0.8), (0, None), (3, None)]),
            scale=8,
        ),
        Case(
            "packed_v4_rows", lambda new: _packed(new, 1, 4, 512, 64, [(5, None), (6, 0.7)], BF16)
        ),
        Case("v4_flash_decode", lambda new: _v4(new, 32, 64, 512), large=True),
        Case("v4_flash_one_token", lambda new: _v4(new, 1, 64, 512), large=True),
        Case("v4_flash_prefill", lambda new: _v4(new, 4096, 64, 512), large=True),
        Case("v4_flash_window", lambda new: _v4(new, 4096, 64, 0, masked=False), large=True),
        Case("v4_flash_packed_decode", lambda new: _v4_packed(new, 32, 64, 512), large=True),
        Case("v4_flash_packed_prefill", lambda new: _v4_packed(new, 4096, 64, 512), large=True),
        Case("v4_flash_packed_window", lambda new: _v4_packed(new, 4096, 64, 0), large=True),
        Case("v4_pro_packed_decode", lambda new: _v4_packed(new, 32, 128, 512), large=True),
        Case("v4_pro_packed_c128", lambda new: _v4_packed(new, 16, 128, 8192), large=True),
        Case("v4_pro_decode", lambda new: _v4(new, 32, 128, 512), large=True),
        Case("v4_pro_prefill", lambda new: _v4(new, 4096, 128, 512), large=True),
        Case("v4_pro_c128_decode", lambda new: _v4(new, 16, 128, 8192), large=True),
        Case("v4_pro_c128_one_token", lambda new: _v4(new, 1, 128, 8192), large=True),
        Case("v4_pro_tp8_decode", lambda new: _v4(new, 32, 16, 512), large=True),
        Case(
            "v4_half",
            lambda new: _arguments(new, 64, 64, 512, [(128, None)], F16, blocks=64, rows=128),
            large=True,
        ),
        Case(
            "v4_float",
            lambda new: _arguments(new, 64, 64, 512, [(128, 0.9), (512, 0.9)]),
            large=True,
        ),
        Case(
            "width_128",
            lambda new: _arguments(new, 512, 32, 128, [(128, 0.9), (512, 0.9)], BF16),
            large=True,
        ),
        Case(
            "width_64",
            lambda new: _arguments(new, 512, 64, 64, [(128, 0.9), (512, 0.9)], BF16),
            large=True,
        ),
    ),
}
