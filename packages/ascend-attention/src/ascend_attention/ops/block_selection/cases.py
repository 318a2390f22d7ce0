"""Inputs of the scores and the selection of blocks.

Values are small integers, so that every score is exact in any order of additions and many are
equal: what is selected is then the same for every implementation that keeps the rule.
"""

from __future__ import annotations

from typing import Any

import torch
from ascend_ops_core.cases import Case, Inputs

from ascend_attention.ops.token_indexer.cases import Batch, paged_table

BF16, F16, F32 = torch.bfloat16, torch.float16, torch.float32
I32, I64 = torch.int32, torch.int64
NAN, NONE = float("nan"), float("-inf")


def queries_of(
    new: Inputs, batch: Batch, padding: int, dtype: torch.dtype = I32
) -> tuple[torch.Tensor, torch.Tensor]:
    """Request and position of every query of a batch, ``padding`` queries behind them."""
    request = [r for r, (count, _) in enumerate(batch) for _ in range(count)]
    position = [p for count, context in batch for p in range(context - count, context)]
    # Padding names a request that there is not.
    return (
        new.tensor(request + [len(batch) + 5] * padding, dtype),
        new.tensor(position + [-1] * padding, dtype),
    )


def _scored(
    new: Inputs,
    batch: Batch,
    heads: int,
    dim: int,
    page: int,
    *,
    dtype: torch.dtype = F32,
    columns: int | None = None,
    wide: int | None = None,
    first: int = 0,
    stride: int = 1,
    init: int = 0,
    local: int = 1,
    padding: int = 0,
    slab: int = 0,
    index: torch.dtype = I32,
) -> tuple[Any, ...]:
    """Pages in random order, NaN wherever no key is.

    Args:
        batch: queries and context length of every request.
        heads: of a query.
        dim: width of a head.
        page: rows of a block.
        dtype: of queries and keys.
        columns: blocks to score, if another number than the longest context has.
        wide: columns of the table, if more than the longest request needs.
        first: number of the first block.
        stride: to the next.
        init: blocks of the beginning that are taken first.
        local: of the end.
        padding: queries behind the step's.
        slab: values between two blocks that belong to another cache.
        index: dtype of requests and positions.
    """
    table, needed, blocks = paged_table(new, batch, page, wide)
    cache = new.full(NAN, blocks, page * dim + slab, dtype=dtype)
    cache = cache[:, slab:].unflatten(1, (page, dim)) if slab else cache.view(blocks, page, dim)
    if new.device != "meta":
        for request, (_, context) in enumerate(batch):
            for start in range(0, context, page):
                rows = min(page, context - start)
                keys = new.randint(-2, 3, rows, dim).to(dtype)
                cache[int(table[request, start // page]), :rows] = keys
    owner, position = queries_of(new, batch, padding, index)
    return (
        new.randint(-2, 3, len(position), heads, dim).to(dtype),
        cache,
        table,
        owner,
        position,
        needed if columns is None else columns,
        first,
        stride,
        init,
        local,
    )


def _nan_keys(new: Inputs) -> tuple[Any, ...]:
    """Some keys and a whole block are NaN, and so are their products."""
    arguments = _scored(new, [(3, 64), (1, 50)], 2, 16, 16, local=0)
    cache, table = arguments[1], arguments[2]
    if new.device != "meta":
        cache[int(table[0, 1])] = NAN
        cache[int(table[0, 2]), 3:9] = NAN
        cache[int(table[1, 0]), 15] = NAN
    return arguments


def _m3(
    new: Inputs, batch: Batch, heads: int, *, columns: int = 512, first: int = 0, stride: int = 1
) -> tuple[Any, ...]:
    return _scored(
        new, batch, heads, 128, 128, dtype=BF16, columns=columns, wide=512, first=first,
        stride=stride,
    )  # fmt: skip


def _candidates(
    new: Inputs,
    rows: tuple[int, int],
    candidates: int,
    top_k: int,
    *,
    given: bool = False,
    seen: float = 0.7,
    first: int = 0,
    stride: int = 1,
) -> tuple[Any, ...]:
    """Scores of few values, some of them missing; numbers in random order where ``given``."""
    scores = new.randint(-2, 3, *rows, candidates).float()
    missing = new.rand(*rows, candidates) > seen
    scores = torch.where(missing, NONE, scores)
    ids = None
    if given:
        ids = new.permutation(7 * candidates, I32)[:candidates].expand(*rows, candidates)
        ids = torch.where(missing, -1, ids)
    return scores, ids, top_k, first, stride


def _poisoned(new: Inputs) -> tuple[Any, ...]:
    """Where there is no candidate its score is NaN, and it has none where its number is -1."""
    scores, ids, *rest = _candidates(new, (3, 2), 20, 6, given=True)
    other = new.rand(3, 2, 20) > 0.5
    return torch.where(ids < 0, torch.where(other, NAN, 9.0), scores), ids, *rest


CASES: dict[str, tuple[Case, ...]] = {
    "block_scores": (
        Case("no_queries", lambda new: _scored(new, [(0, 20)], 2, 16, 16)),
        Case("no_requests", lambda new: _scored(new, [], 2, 16, 16, padding=2)),
        Case("no_columns", lambda new: _scored(new, [(1, 20)], 2, 16, 16, columns=0)),
        Case("one", lambda new: _scored(new, [(1, 1)], 1, 16, 16)),
        Case("below_a_block", lambda new: _scored(new, [(5, 5), (1, 15)], 3, 16, 16)),
        Case(
            "ragged",
            lambda new: _scored(new, [(5, 70), (0, 9), (1, 33), (7, 17)], 4, 9, 16, index=I64),
        ),
        Case("init_and_local", lambda new: _scored(new, [(3, 90)], 2, 16, 16, init=2, local=2)),
        Case("overlapping", lambda new: _scored(new, [(4, 34)], 2, 16, 16, init=3, local=2)),
        Case("no_local", lambda new: _scored(new, [(13, 40), (5, 37)], 2, 16, 16, local=0)),
        Case("nan_keys", _nan_keys),
        Case(
            "strided", lambda new: _scored(new, [(2, 150), (1, 120)], 2, 16, 16, first=1, stride=3)
        ),
        Case(
            "empty_share",
            lambda new: _scored(new, [(1, 30)], 2, 16, 16, columns=2, first=5, stride=8, wide=22),
        ),
        Case(
            "wide",
            lambda new: _scored(new, [(1, 21), (1, 40)], 4, 16, 16, columns=11, wide=11),
        ),
        Case("padding", lambda new: _scored(new, [(1, 12), (2, 40)], 2, 16, 16, padding=3)),
        Case("slab", lambda new: _scored(new, [(3, 33)], 3, 12, 32, slab=24)),
        Case("bfloat16", lambda new: _scored(new, [(4, 70)], 4, 32, 32, dtype=BF16)),
        Case("half", lambda new: _scored(new, [(2, 70), (2, 8)], 1, 32, 32, dtype=F16)),
        Case("uneven_blocks", lambda new: _scored(new, [(19, 100)], 2, 16, 48, padding=1)),
        Case("many_queries", lambda new: _scored(new, [(40, 90), (1, 60)], 2, 16, 16, local=2)),
        Case("m3", lambda new: _scored(new, [(2, 300), (1, 5)], 4, 128, 128, dtype=BF16)),
        Case("m3_decode", lambda new: _m3(new, [(1, 65536)] * 8, 4), large=True),
        Case("m3_tp4_decode", lambda new: _m3(new, [(4, 65536)] * 8, 1), large=True),
        Case(
            "m3_block_parallel",
            lambda new: _m3(new, [(1, 65536)] * 8, 4, columns=64, first=3, stride=8),
            large=True,
        ),
        Case("m3_prefill", lambda new: _m3(new, [(4096, 32768)], 4), large=True),
        Case("m3_tp2_prefill", lambda new: _m3(new, [(4096, 32768)], 2), large=True),
        Case("m3_tp8_prefill", lambda new: _m3(new, [(4096, 32768)], 1), large=True),
    ),
    "best_blocks": (
        Case("no_rows", lambda new: _candidates(new, (0, 2), 5, 3)),
        Case("no_candidates", lambda new: _candidates(new, (2, 2), 0, 3)),
        Case("one", lambda new: _candidates(new, (1, 1), 1, 1, seen=1.0)),
        Case("fewer", lambda new: _candidates(new, (3, 2), 5, 16)),
        Case("ties", lambda new: _candidates(new, (5, 4), 63, 16)),
        Case("nothing", lambda new: _candidates(new, (2, 1), 9, 4, seen=-1.0)),
        Case("strided", lambda new: _candidates(new, (3, 4), 33, 7, first=5, stride=8)),
        Case("merged", lambda new: _candidates(new, (3, 2), 40, 16, given=True)),
        Case("poisoned", _poisoned),
        Case("many", lambda new: _candidates(new, (1, 2), 2100, 5)),
        Case("m3_decode", lambda new: _candidates(new, (8, 4), 512, 16), large=True),
        Case("m3_tp4", lambda new: _candidates(new, (8, 1), 512, 16), large=True),
        Case("m3_prefill", lambda new: _candidates(new, (4096, 4), 256, 16), large=True),
        Case("m3_long", lambda new: _candidates(new, (64, 4), 8192, 16), large=True),
        Case("m3_merged", lambda new: _candidates(new, (8, 1), 128, 16, given=True), large=True),
    ),
}
