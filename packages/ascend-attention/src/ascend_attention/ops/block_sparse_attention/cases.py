"""Inputs of block-sparse attention: ragged requests, padding, NaN wherever nothing is read."""

from __future__ import annotations

from typing import Any

import torch
from ascend_ops_core.cases import Case, Inputs

from ascend_attention.ops.block_selection.cases import queries_of
from ascend_attention.ops.token_indexer.cases import Batch, paged_table

BF16, F16, F32 = torch.bfloat16, torch.float16, torch.float32
I32, I64 = torch.int32, torch.int64
NAN = float("nan")


def _attended(
    new: Inputs,
    batch: Batch,
    heads: tuple[int, int],
    dim: int,
    page: int,
    places: int,
    *,
    dtype: torch.dtype = F32,
    padding: int = 0,
    joined: bool = False,
    wide: int | None = None,
    index: torch.dtype = I32,
) -> tuple[Any, ...]:
    """Each key-value head of a query selects random blocks that the query sees.

    Args:
        batch: queries and context length of every request.
        heads: query heads, and key-value heads.
        dim: width of a head.
        page: rows of a block.
        places: blocks that a query may select.
        dtype: of everything.
        padding: queries behind the step's.
        joined: keys and values side by side in a row, heads in front of rows, as vLLM has them.
        wide: columns of the table, if more than the longest request needs.
        index: dtype of requests and positions.
    """
    table, _, blocks = paged_table(new, batch, page, wide)
    if joined:
        both = new.full(NAN, blocks, heads[1], page, 2 * dim, dtype=dtype).transpose(1, 2)
        keys, values = both[..., :dim], both[..., dim:]
    else:
        keys, values = (new.full(NAN, blocks, page, heads[1], dim, dtype=dtype) for _ in "kv")
    request, position = queries_of(new, batch, padding, index)
    selected = new.full(-1, len(position), heads[1], places, dtype=I32)
    if new.device != "meta":
        for r, (_, context) in enumerate(batch):
            for start in range(0, context, page):
                rows = min(page, context - start)
                for cache in (keys, values):
                    made = new.randn(rows, heads[1], dim, dtype=dtype)
                    cache[int(table[r, start // page]), :rows] = made
        for t, p in enumerate(position.tolist()):
            for g in range(heads[1] if p >= 0 else 0):
                seen = p // page + 1
                kept = min(places, seen)
                selected[t, g, :kept] = new.permutation(seen, I32)[:kept]
    return (
        new.randn(len(position), heads[0], dim, dtype=dtype),
        keys,
        values,
        selected,
        table,
        request,
        position,
        dim**-0.5,
    )


def _few_selected(new: Inputs) -> tuple[Any, ...]:
    """Fewer blocks than places, none at all, and garbage behind the first -1."""
    arguments = _attended(new, [(3, 60), (1, 47)], (4, 2), 16, 16, 5)
    selected = arguments[3]
    if new.device != "meta":
        selected[0, 0] = torch.tensor([2, -1, 7000, 1, 0])
        selected[1, 1] = torch.tensor([-1, 3, 3, -1, 90000])
        selected[3] = -1
    return arguments


def _strided(new: Inputs) -> tuple[Any, ...]:
    """Queries cut out of a fused projection."""
    _, *rest = _attended(new, [(3, 40), (1, 7)], (6, 3), 24, 16, 3)
    return new.randn(4, 6, 40)[..., 11:35], *rest


def _m3(new: Inputs, batch: Batch, heads: tuple[int, int]) -> tuple[Any, ...]:
    return _attended(new, batch, heads, 128, 128, 16, dtype=BF16, wide=512)


CASES: dict[str, tuple[Case, ...]] = {
    "block_sparse_attention": (
        Case("no_queries", lambda new: _attended(new, [(0, 20)], (4, 2), 16, 16, 3)),
        Case("no_requests", lambda new: _attended(new, [], (4, 2), 16, 16, 3, padding=2)),
        Case("no_places", lambda new: _attended(new, [(2, 5)], (4, 2), 16, 16, 0)),
        Case("one", lambda new: _attended(new, [(1, 1)], (1, 1), 16, 16, 3)),
        Case(
            "ragged",
            lambda new: _attended(new, [(5, 63), (0, 4), (1, 3)], (6, 3), 20, 16, 2, index=I64),
        ),
        Case("padding", lambda new: _attended(new, [(2, 40)], (4, 2), 16, 16, 3, padding=2)),
        Case("few_selected", _few_selected),
        Case("joined", lambda new: _attended(new, [(3, 70)], (4, 2), 16, 32, 2, joined=True)),
        Case("strided", _strided),
        Case("uneven_blocks", lambda new: _attended(new, [(2, 100)], (2, 1), 16, 48, 2)),
        Case("many_heads", lambda new: _attended(new, [(2, 40)], (40, 2), 16, 16, 2)),
        Case("bfloat16", lambda new: _attended(new, [(4, 70)], (8, 2), 32, 32, 2, dtype=BF16)),
        Case("half", lambda new: _attended(new, [(2, 70)], (4, 4), 32, 32, 2, dtype=F16)),
        Case("many_queries", lambda new: _attended(new, [(20, 90), (1, 60)], (4, 2), 16, 16, 3)),
        Case(
            "many_in_bfloat16",
            lambda new: _attended(new, [(17, 70)], (2, 1), 32, 32, 2, dtype=BF16, padding=1),
        ),
        Case(
            "split",
            lambda new: _attended(new, [(1, 700), (1, 3)], (2, 1), 16, 128, 5, padding=1),
        ),
        Case("m3", lambda new: _attended(new, [(1, 400)], (16, 1), 128, 128, 3, dtype=BF16)),
        Case("m3_decode", lambda new: _m3(new, [(1, 65536)] * 8, (64, 4)), large=True),
        Case("m3_one", lambda new: _m3(new, [(1, 65536)], (64, 4)), large=True),
        Case("m3_tp4_decode", lambda new: _m3(new, [(4, 65536)] * 8, (16, 1)), large=True),
        Case("m3_tp8_decode", lambda new: _m3(new, [(1, 65536)] * 8, (8, 1)), large=True),
        Case("m3_prefill", lambda new: _m3(new, [(4096, 32768)], (64, 4)), large=True),
        Case("m3_tp2_prefill", lambda new: _m3(new, [(4096, 32768)], (32, 2)), large=True),
        Case("m3_tp8_prefill", lambda new: _m3(new, [(4096, 32768)], (8, 1)), large=True),
    ),
}
