"""Inputs of the sparse MLA."""

from __future__ import annotations

from typing import Any

import torch
from ascend_ops_core.cases import Case, Inputs

from ascend_attention.ops.token_indexer.cases import Batch, paged_table, step_of

BF16, F16, F32 = torch.bfloat16, torch.float16, torch.float32
NAN = float("nan")


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
    together: bool = False,
    columns: int | None = None,
) -> tuple[Any, ...]:
    """Pages in random order, NaN wherever no row is; each query selects random tokens it sees.

    Args:
        batch: queries and context length of every request.
        heads: of a query.
        latent: width of the latent.
        rope: width of the rotated part.
        page: rows of a block.
        places: tokens that a query may select.
        dtype: of everything.
        padding: queries behind the step's.
        together: rows hold latent and rotated part side by side.
        columns: of the table, if more than the longest request needs.
    """
    table, _, blocks = paged_table(new, batch, page, columns)
    ends, lens = step_of(new, batch)
    tokens = sum(count for count, _ in batch) + padding
    if together:
        whole = new.full(NAN, blocks, page, latent + rope, dtype=dtype)
        caches = whole[..., :latent], whole[..., latent:]
    else:
        caches = (
            new.full(NAN, blocks, page, latent, dtype=dtype),
            new.full(NAN, blocks, page, rope, dtype=dtype),
        )
    selected = new.full(-1, tokens, places, dtype=torch.int32)
    if new.device != "meta":
        t = 0
        for request, (count, context) in enumerate(batch):
            for first in range(0, context, page):
                rows = min(page, context - first)
                block = int(table[request, first // page])
                for cache in caches:
                    cache[block, :rows] = new.randn(rows, cache.shape[2], dtype=dtype)
            for back in range(count - 1, -1, -1):
                kept = min(places, max(0, context - back))
                selected[t, :kept] = new.permutation(max(0, context - back), torch.int32)[:kept]
                t += 1
    return (
        new.randn(tokens, heads, latent, dtype=dtype),
        new.randn(tokens, heads, rope, dtype=dtype),
        *caches,
        selected,
        table,
        ends,
        lens,
        (latent + rope) ** -0.5,
    )


def _strided(new: Inputs) -> tuple[Any, ...]:
    _, _, *rest = attended(new, [(3, 20), (1, 7)], 3, 24, 8, 5, 9)
    query = new.randn(4, 3, 40)
    return query[..., 3:27], query[..., 30:38], *rest


def _large(new: Inputs, batch: Batch, heads: int, dtype: torch.dtype = BF16) -> tuple[Any, ...]:
    return attended(new, batch, heads, 512, 64, 128, 2048, dtype=dtype, columns=1024)


CASES: dict[str, tuple[Case, ...]] = {
    "sparse_mla": (
        Case("no_queries", lambda new: attended(new, [(0, 5)], 2, 16, 8, 4, 3)),
        Case("no_requests", lambda new: attended(new, [], 2, 16, 8, 4, 3, padding=2)),
        Case("no_places", lambda new: attended(new, [(2, 5)], 2, 16, 8, 4, 0)),
        Case("one", lambda new: attended(new, [(1, 1)], 2, 16, 8, 4, 3)),
        Case("odd", lambda new: attended(new, [(5, 63), (0, 4), (1, 3)], 3, 33, 5, 7, 17)),
        Case("padding", lambda new: attended(new, [(2, 9), (1, 0)], 2, 16, 8, 4, 6, padding=2)),
        Case("together", lambda new: attended(new, [(3, 40)], 5, 32, 16, 16, 33, together=True)),
        Case("strided", _strided),
        Case("many_rows", lambda new: attended(new, [(1, 700)], 4, 32, 8, 64, 600)),
        Case("bfloat16", lambda new: attended(new, [(4, 65)], 17, 64, 16, 16, 40, dtype=BF16)),
        Case("half", lambda new: attended(new, [(2, 65)], 4, 64, 16, 16, 40, dtype=F16)),
        Case("torch_npu", lambda new: attended(new, [(2, 40)], 4, 512, 64, 16, 31, dtype=BF16)),
        Case(
            "torch_npu_padded",
            lambda new: attended(new, [(1, 40), (1, 3)], 2, 512, 64, 16, 31, dtype=F16, padding=1),
        ),
        Case("v32_decode", lambda new: _large(new, [(1, 65536)] * 8, 128), large=True),
        Case("v32_tp8_decode", lambda new: _large(new, [(2, 65536)] * 8, 16), large=True),
        Case("v32_prefill", lambda new: _large(new, [(1024, 8192)], 128), large=True),
        Case("glm5_decode", lambda new: _large(new, [(1, 65536)] * 8, 64), large=True),
        Case("glm5_tp8_prefill", lambda new: _large(new, [(1024, 8192)], 8), large=True),
    ),
}
