"""Inputs of the lightning indexer."""

from __future__ import annotations

from typing import Any

import torch
from ascend_ops_core.cases import Case, Inputs

BF16, F16, F32 = torch.bfloat16, torch.float16, torch.float32
I32, I64 = torch.int32, torch.int64
INT8, FP8 = torch.int8, torch.float8_e4m3fn
NAN = float("nan")

Batch = list[tuple[int, int]]
"""For every request its tokens in the step and the entries that the last of them sees."""


def _eight_bits(new: Inputs, dtype: torch.dtype, *shape: int) -> torch.Tensor:
    if dtype == INT8:
        return new.randint(-127, 128, *shape, dtype=INT8)
    return new.randn(*shape, scale=20.0).to(FP8)


def _values(new: Inputs, dtype: torch.dtype, *shape: int) -> torch.Tensor:
    if dtype in (INT8, FP8):
        return _eight_bits(new, dtype, *shape)
    return new.randn(*shape, dtype=dtype)


def _scored(
    new: Inputs,
    batch: Batch,
    heads: int,
    dim: int,
    page: int,
    *,
    dtype: torch.dtype = F32,
    index: torch.dtype = I64,
    padding: int = 0,
    columns: int | None = None,
    slab: int = 0,
    scale: torch.dtype = F32,
) -> list[Any]:
    """Arguments without the last: pages in random order, NaN (or 127) wherever no key is.

    Args:
        batch: the requests; earlier tokens of one see one entry less each.
        heads: of a token.
        dim: width of a head.
        page: rows of a block.
        dtype: of queries and keys.
        index: of table, requests and numbers of entries.
        padding: tokens behind the step's.
        columns: of the table, if more than the longest request needs.
        slab: values between two blocks that belong to another cache.
        scale: dtype of the scales.
    """
    tokens = sum(count for count, _ in batch) + padding
    needed = max([1, *(-(-seen // page) for _, seen in batch)])
    columns = columns or needed
    used = len(batch) * needed
    blocks = used + 2
    eight = dtype in (INT8, FP8)
    fill = 127.0 if eight else NAN
    cache = new.full(fill, blocks, page * dim + slab, dtype=dtype)[:, slab:]
    cache = cache.unflatten(1, (page, dim))
    scales = new.full(NAN, blocks, page, dtype=scale)
    table = new.full(0, len(batch), columns, dtype=index)
    table[:, :needed] = new.permutation(blocks, index)[:used].view(len(batch), needed)
    owner, visible = [], []
    for request, (count, seen) in enumerate(batch):
        owner += [request] * count
        visible += [max(0, seen - back) for back in range(count - 1, -1, -1)]
        if new.device == "meta":
            continue
        for first in range(0, seen, page):
            rows = min(page, seen - first)
            block = int(table[request, first // page])
            cache[block, :rows] = _values(new, dtype, rows, dim)
            scales[block, :rows] = (new.rand(rows) + 0.5).to(scale)
    return [
        _values(new, dtype, tokens, heads, dim),
        new.randn(tokens, heads, scale=(heads * dim) ** -0.5),
        cache,
        scales if eight else None,
        table,
        new.tensor([*owner, *([-1] * padding)], index),
        new.tensor([*visible, *([0] * padding)], index),
    ]


def _scores(new: Inputs, batch: Batch, *sizes: int, extra: int = 0, **kwargs: Any) -> Any:
    width = max([0, *(seen for _, seen in batch)]) + extra
    return (*_scored(new, batch, *sizes, **kwargs), width)


def _selected(new: Inputs, batch: Batch, *sizes: int, top_k: int, extra: int = 0, **kw: Any) -> Any:
    width = max([0, *(seen for _, seen in batch)]) + extra
    return (*_scored(new, batch, *sizes, **kw), top_k, width)


def _many(requests: int, tokens: int, seen: int) -> Batch:
    return [(tokens, seen)] * requests


def _rows(
    new: Inputs,
    count: int,
    dim: int,
    cached: torch.dtype,
    *,
    dtype: torch.dtype = F32,
    page: int = 8,
    blocks: int | None = None,
    padding: int = 0,
    index: torch.dtype = I64,
    scale: torch.dtype = F32,
) -> tuple[Any, ...]:
    blocks = blocks or -(-count // page) + 1
    cache = new.full(3, blocks, page * dim + 5, dtype=cached)[:, 5:].unflatten(1, (page, dim))
    scales = new.full(0.5, blocks, page, 2, dtype=scale)[:, :, 1]
    place = new.permutation(blocks * page, index)[:count]
    block = torch.div(place, page, rounding_mode="floor")
    gone = new.full(-1, padding, dtype=index)
    return (
        cache,
        scales,
        new.randn(count + padding, dim, dtype=dtype, scale=4.0),
        torch.cat((block, gone)),
        torch.cat((place - block * page, gone)),
    )


def _special_rows(new: Inputs) -> tuple[Any, ...]:
    """Rows of zeros, with NaN, with infinity, and one of a subnormal."""
    cache, scales, rows, block, offset = _rows(new, 5, 33, INT8)
    if new.device != "meta":
        rows[0] = 0.0
        rows[1, 3] = NAN
        rows[2, 32] = float("inf")
        rows[3] = 0.0
        rows[3, 1] = 1e-40
    return cache, scales, rows, block, offset


DECODE: Batch = [(1, 13), (1, 0), (1, 37), (1, 8)]
DRAFTS: Batch = [(3, 13), (3, 2), (3, 21)]
RAGGED: Batch = [(7, 9), (1, 30), (0, 5), (4, 3)]

CASES: dict[str, tuple[Case, ...]] = {
    "indexer_scores": (
        Case("no_tokens", lambda new: _scores(new, [(0, 5)], 2, 8, 4)),
        Case("nothing_visible", lambda new: _scores(new, [(2, 0)], 2, 8, 4)),
        Case("one", lambda new: _scores(new, [(1, 1)], 1, 1, 1)),
        Case("no_requests", lambda new: _scores(new, [], 2, 8, 4, padding=3, columns=2, extra=7)),
        Case("decode", lambda new: _scores(new, DECODE, 3, 8, 5, extra=2)),
        Case("drafts", lambda new: _scores(new, DRAFTS, 16, 33, 4)),
        Case("ragged", lambda new: _scores(new, RAGGED, 32, 16, 8, padding=3, extra=2)),
        Case("one_request", lambda new: _scores(new, [(9, 40)], 16, 32, 16, index=I32)),
        Case("long_pages", lambda new: _scores(new, [(2, 300), (1, 7)], 64, 16, 400, columns=3)),
        Case("bf16", lambda new: _scores(new, DECODE, 64, 128, 32, dtype=BF16, slab=24)),
        Case("f16", lambda new: _scores(new, DRAFTS, 16, 65, 32, dtype=F16, index=I32)),
        Case("int8", lambda new: _scores(new, RAGGED, 16, 32, 8, dtype=INT8), scale=100.0),
        Case(
            "int8_f16_scales",
            lambda new: _scores(new, DECODE, 5, 40, 7, dtype=INT8, scale=F16, slab=64, padding=2),
            scale=100.0,
        ),
        Case("fp8", lambda new: _scores(new, RAGGED, 16, 32, 8, dtype=FP8, slab=32), scale=30.0),
        Case(
            "v4_decode",
            lambda new: _scores(new, _many(256, 1, 4096), 64, 128, 64, dtype=BF16, columns=1024),
            large=True,
        ),
        Case(
            "v4_drafts",
            lambda new: _scores(new, _many(64, 3, 16384), 64, 128, 32, dtype=BF16, index=I32),
            large=True,
        ),
        Case(
            "v4_prefill",
            lambda new: _scores(new, [(4096, 2048)], 64, 128, 64, dtype=BF16),
            large=True,
        ),
        Case(
            "v4_prefill_f32",
            lambda new: _scores(new, [(512, 2048)], 64, 128, 64),
            large=True,
        ),
        Case(
            "v4_decode_int8",
            lambda new: _scores(new, _many(256, 1, 4096), 64, 128, 64, dtype=INT8, scale=F16),
            large=True,
        ),
        Case(
            "v4_prefill_int8",
            lambda new: _scores(new, [(4096, 2048)], 64, 128, 128, dtype=INT8, scale=F16),
            large=True,
        ),
        Case(
            "v4_decode_fp8",
            lambda new: _scores(new, _many(256, 1, 4096), 64, 128, 64, dtype=FP8),
            large=True,
        ),
        Case(
            "v4_prefill_fp8",
            lambda new: _scores(new, [(4096, 2048)], 64, 128, 64, dtype=FP8),
            large=True,
        ),
        Case(
            "widest",
            lambda new: _scores(new, _many(2, 1, 512), 128, 256, 128, dtype=BF16),
            large=True,
        ),
        Case(
            "widest_f32",
            lambda new: _scores(new, [(64, 512)], 128, 256, 128),
            large=True,
        ),
    ),
    "select_entries": (
        Case("no_tokens", lambda new: _selected(new, [(0, 5)], 2, 8, 4, top_k=3)),
        Case("fits", lambda new: _selected(new, DECODE, 2, 8, 4, top_k=40)),
        Case("decode", lambda new: _selected(new, DECODE, 3, 8, 5, top_k=9, extra=2)),
        Case("ragged", lambda new: _selected(new, RAGGED, 16, 16, 8, top_k=4, padding=3)),
        Case("bf16", lambda new: _selected(new, DRAFTS, 64, 128, 32, top_k=8, dtype=BF16)),
        Case("int8", lambda new: _selected(new, DECODE, 4, 33, 8, top_k=11, dtype=INT8)),
        Case("fp8", lambda new: _selected(new, DRAFTS, 16, 32, 8, top_k=5, dtype=FP8)),
        Case(
            "v4_flash",
            lambda new: _selected(new, _many(256, 1, 16384), 64, 128, 64, top_k=512, dtype=BF16),
            large=True,
        ),
        Case(
            "v4_pro_1m",
            lambda new: _selected(new, [(2048, 262144)], 64, 128, 64, top_k=1024, dtype=BF16),
            large=True,
        ),
    ),
    "quantize_index_rows": (
        Case("no_rows", lambda new: _rows(new, 0, 16, INT8)),
        Case("one", lambda new: _rows(new, 1, 1, INT8, page=1)),
        Case("odd", lambda new: _rows(new, 7, 65, INT8, dtype=F16, scale=F16)),
        Case("padded", lambda new: _rows(new, 5, 63, INT8, dtype=BF16, padding=4, index=I32)),
        Case("all_padding", lambda new: _rows(new, 0, 24, INT8, padding=3)),
        Case("special", _special_rows),
        Case("fp8", lambda new: _rows(new, 9, 130, FP8, padding=2)),
        Case("wide", lambda new: _rows(new, 2, 1000, INT8)),
        Case(
            "v4",
            lambda new: _rows(new, 1024, 128, INT8, dtype=BF16, page=64, scale=F16, index=I32),
            large=True,
        ),
        Case(
            "v4_a5",
            lambda new: _rows(new, 1024, 128, FP8, dtype=BF16, page=64),
            large=True,
        ),
    ),
}
