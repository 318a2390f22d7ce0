"""Inputs of quantised MLA."""

from __future__ import annotations

from typing import Any

import torch
from ascend_ops_core.cases import Case, Inputs

from ascend_attention.ops.quantized_mla.layout import rotated_part, row_bytes, scales_part
from ascend_attention.ops.token_indexer.cases import Batch, paged_table, step_of

BF16, F16, F32 = torch.bfloat16, torch.float16, torch.float32


def _rows(
    new: Inputs,
    count: int,
    latent: int,
    rope: int,
    *,
    dtype: torch.dtype = F32,
    page: int = 4,
    padding: int = 0,
    slab: int = 0,
    index: torch.dtype = torch.int64,
    gap: int = 0,
) -> tuple[Any, ...]:
    blocks, width = -(-count // page) + 1, row_bytes(latent, rope)
    cache = new.full(3, blocks, page * width + slab, dtype=torch.int8)[:, slab:]
    place = new.permutation(blocks * page, index)[:count]
    block = torch.div(place, page, rounding_mode="floor")
    gone = new.full(-1, padding, dtype=index)
    both = new.randn(count + padding, latent + rope + gap, dtype=dtype, scale=3.0)
    return (
        cache.unflatten(1, (page, width)),
        both[:, :latent],
        both[:, latent : latent + rope],
        torch.cat((block, gone)),
        torch.cat((place - block * page, gone)),
    )


def attended(
    new: Inputs,
    batch: Batch,
    heads: int,
    latent: int,
    rope: int,
    page: int,
    places: int,
    *,
    dtype: torch.dtype = F32,
    padding: int = 0,
    columns: int | None = None,
) -> tuple[Any, ...]:
    """Pages in random order, with NaN as scales wherever no row is."""
    table, _, blocks = paged_table(new, batch, page, columns)
    ends, lens = step_of(new, batch)
    tokens = sum(count for count, _ in batch) + padding
    cache = new.full(127, blocks, page, row_bytes(latent, rope), dtype=torch.int8)
    selected = new.full(-1, tokens, places, dtype=torch.int32)
    if new.device != "meta":
        scales = scales_part(cache, latent, rope).fill_(float("nan"))
        rotated, t = rotated_part(cache, latent, rope), 0
        for request, (count, context) in enumerate(batch):
            for first in range(0, context, page):
                rows = min(page, context - first)
                block = int(table[request, first // page])
                values = new.randint(-127, 128, rows, latent, dtype=torch.int8)
                cache[block, :rows, :latent] = values
                rotated[block, :rows] = new.randn(rows, rope, dtype=BF16)
                scales[block, :rows] = (new.rand(rows, scales.shape[2]) + 0.5) / 64
            for back in range(count - 1, -1, -1):
                seen = max(0, context - back)
                kept = min(places, seen)
                selected[t, :kept] = new.permutation(seen, torch.int32)[:kept]
                t += 1
    return (
        new.randn(tokens, heads, latent, dtype=dtype),
        new.randn(tokens, heads, rope, dtype=dtype),
        cache,
        selected,
        table,
        ends,
        lens,
        (latent + rope) ** -0.5,
    )


def _large(new: Inputs, batch: Batch, heads: int) -> tuple[Any, ...]:
    return attended(new, batch, heads, 512, 64, 128, 2048, dtype=BF16, columns=1024)


CASES: dict[str, tuple[Case, ...]] = {
    "quantize_mla_rows": (
        Case("no_rows", lambda new: _rows(new, 0, 128, 16)),
        Case("one", lambda new: _rows(new, 1, 128, 16)),
        Case("odd", lambda new: _rows(new, 17, 384, 6, slab=12)),
        Case("padding", lambda new: _rows(new, 3, 256, 16, padding=2, index=torch.int32)),
        Case("bfloat16", lambda new: _rows(new, 9, 512, 64, dtype=BF16, gap=8)),
        Case("half", lambda new: _rows(new, 5, 256, 34, dtype=F16)),
        Case("v32", lambda new: _rows(new, 1024, 512, 64, dtype=BF16, page=128), large=True),
    ),
    "quantized_sparse_mla": (
        Case("no_queries", lambda new: attended(new, [(0, 5)], 2, 128, 8, 4, 3)),
        Case("no_requests", lambda new: attended(new, [], 2, 128, 8, 4, 3, padding=2)),
        Case("no_places", lambda new: attended(new, [(2, 5)], 2, 128, 8, 4, 0)),
        Case("one", lambda new: attended(new, [(1, 1)], 2, 128, 8, 4, 3)),
        Case("odd", lambda new: attended(new, [(3, 40), (0, 4), (1, 3)], 3, 256, 6, 7, 17)),
        Case("padding", lambda new: attended(new, [(2, 9), (1, 0)], 2, 128, 8, 4, 6, padding=2)),
        Case("many_rows", lambda new: attended(new, [(1, 300)], 4, 128, 8, 64, 260)),
        Case("bfloat16", lambda new: attended(new, [(2, 65)], 17, 128, 16, 16, 40, dtype=BF16)),
        Case("torch_npu", lambda new: attended(new, [(2, 40)], 4, 512, 64, 16, 31, dtype=BF16)),
        Case("v32_decode", lambda new: _large(new, [(1, 65536)] * 8, 128), large=True),
        Case("v32_tp16_drafts", lambda new: _large(new, [(4, 65536)] * 8, 8), large=True),
        Case("glm5_prefill", lambda new: _large(new, [(1024, 8192)], 64), large=True),
    ),
}
