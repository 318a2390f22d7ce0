"""Inputs of the selection of tokens.

Values are small integers, so that every score is exact in any order of additions and many are
equal: what is selected is then the same for every implementation that keeps the rule.
"""

from __future__ import annotations

from typing import Any

import torch
from ascend_ops_core.cases import Case, Inputs

from ascend_attention.ops.token_indexer.batch import owners

BF16, F16, F32 = torch.bfloat16, torch.float16, torch.float32
I32 = torch.int32
INT8, FP8 = torch.int8, torch.float8_e4m3fn
NAN = float("nan")

Batch = list[tuple[int, int]]
"""For every request its queries in the step and its context length, the queries included."""


def paged_table(
    new: Inputs, batch: Batch, page: int, columns: int | None = None
) -> tuple[torch.Tensor, int, int]:
    """A table of blocks in random order, its used columns, and how many blocks there are."""
    needed = max([1, *(-(-context // page) for _, context in batch)])
    columns = columns or needed
    blocks = len(batch) * needed + 2
    table = new.full(0, len(batch), columns, dtype=I32)
    table[:, :needed] = new.permutation(blocks, I32)[: len(batch) * needed].view(-1, needed)
    return table, needed, blocks


def step_of(new: Inputs, batch: Batch) -> tuple[torch.Tensor, torch.Tensor]:
    """``query_ends`` and ``seq_lens`` of a batch."""
    ends, total = [], 0
    for count, _ in batch:
        total += count
        ends.append(total)
    return new.tensor(ends, I32), new.tensor([context for _, context in batch], I32)


def owned(inputs: tuple[Any, ...], empty: int, index: torch.dtype) -> tuple[Any, ...]:
    """Inputs of attention to selected rows, with the request of every query instead of the ends.

    Args:
        inputs: that end with ``selected``, block table, ``query_ends``, ``seq_lens`` and scale.
        empty: every so-many-th query has selected nothing; 0 for none.
        index: dtype of the requests' numbers.
    """
    *front, selected, table, ends, lens, scale = inputs
    if empty:
        selected[::empty] = -1
    request, _ = owners(ends, lens, selected.shape[0])
    return *front, selected, table, request.to(index), scale


def _selected(
    new: Inputs,
    batch: Batch,
    heads: int,
    dim: int,
    page: int,
    top_k: int,
    *,
    dtype: torch.dtype = F32,
    scale: torch.dtype = F32,
    padding: int = 0,
    columns: int | None = None,
    slab: int = 0,
    most: int | None = None,
    largest: int = 2,
) -> tuple[Any, ...]:
    """Pages in random order, NaN (or 127) wherever no key is.

    Args:
        batch: the requests.
        heads: of a query.
        dim: width of a head.
        page: rows of a block.
        top_k: tokens to keep.
        dtype: of queries and keys.
        scale: dtype of the scales of keys of eight bits.
        padding: queries behind the step's.
        columns: of the table, if more than the longest request needs.
        slab: values between two blocks that belong to another cache.
        most: width of the scores, if another than the longest context.
        largest: of the integers that keys are made of.
    """
    table, _, blocks = paged_table(new, batch, page, columns)
    ends, lens = step_of(new, batch)
    tokens = sum(count for count, _ in batch) + padding
    eight = dtype in (INT8, FP8)
    cache = new.full(127.0 if eight else NAN, blocks, page * dim + slab, dtype=dtype)
    cache = cache[:, slab:].unflatten(1, (page, dim)) if slab else cache.view(blocks, page, dim)
    scales = new.full(NAN, blocks, page, dtype=scale)
    if new.device != "meta":
        for request, (_, context) in enumerate(batch):
            for first in range(0, context, page):
                rows = min(page, context - first)
                block = int(table[request, first // page])
                cache[block, :rows] = new.randint(-largest, largest + 1, rows, dim).to(dtype)
                scales[block, :rows] = 0.5 * new.randint(1, 3, rows).to(scale)
    return (
        new.randint(-largest, largest + 1, tokens, heads, dim).to(dtype),
        new.randint(-3, 4, tokens, heads).float(),
        cache,
        0.25 * new.randint(1, 3, tokens, heads).float() if eight else None,
        scales if eight else None,
        table,
        ends,
        lens,
        top_k,
        max([0, *(context for _, context in batch)]) if most is None else most,
    )


def _large(
    new: Inputs, batch: Batch, heads: int, *, dtype: torch.dtype = BF16, context: int = 65536
) -> tuple[Any, ...]:
    scale = F32 if dtype == FP8 else F16
    return _selected(
        new, batch, heads, 128, 128, 2048, dtype=dtype, scale=scale, columns=context // 128,
        most=context,
    )  # fmt: skip


def _zero_keys(new: Inputs) -> tuple[Any, ...]:
    """Every score is 0, so that only the order of tokens decides."""
    arguments = _selected(new, [(3, 40), (1, 33)], 2, 8, 16, 5)
    return (new.full(0, 4, 2, 8), *arguments[1:])


CASES: dict[str, tuple[Case, ...]] = {
    "select_tokens": (
        Case("no_queries", lambda new: _selected(new, [(0, 5)], 2, 8, 4, 3)),
        Case("no_requests", lambda new: _selected(new, [], 2, 8, 4, 3, most=4)),
        Case("one", lambda new: _selected(new, [(1, 1)], 2, 8, 4, 3)),
        Case("just_all", lambda new: _selected(new, [(4, 9)], 3, 8, 4, 9)),
        Case("one_more", lambda new: _selected(new, [(4, 10)], 3, 8, 4, 9)),
        Case("ties", _zero_keys),
        Case("ragged", lambda new: _selected(new, [(5, 70), (0, 9), (1, 3), (17, 17)], 4, 9, 5, 6)),
        Case(
            "bound", lambda new: _selected(new, [(2, 21), (1, 9)], 4, 16, 8, 4, columns=9, most=65)
        ),
        Case("padding", lambda new: _selected(new, [(1, 12), (1, 0)], 2, 8, 4, 3, padding=3)),
        Case("slab", lambda new: _selected(new, [(3, 33)], 3, 12, 7, 8, slab=24)),
        Case("bfloat16", lambda new: _selected(new, [(2, 40)], 16, 32, 16, 8, dtype=BF16)),
        Case("half", lambda new: _selected(new, [(2, 40)], 5, 32, 16, 8, dtype=F16)),
        Case("int8", lambda new: _selected(new, [(3, 63)], 4, 32, 16, 8, dtype=INT8)),
        Case("float8", lambda new: _selected(new, [(3, 63)], 4, 64, 16, 8, dtype=FP8)),
        Case(
            "torch_npu",
            lambda new: _selected(new, [(3, 65), (1, 130)], 4, 128, 16, 31, dtype=BF16),
        ),
        Case(
            "torch_npu_padded",
            lambda new: _selected(new, [(1, 65), (1, 20)], 4, 128, 16, 31, dtype=F16, padding=2),
        ),
        Case(
            "torch_npu_int8",
            lambda new: _selected(new, [(3, 65), (1, 130)], 4, 128, 16, 31, dtype=INT8, scale=F16),
        ),
        Case(
            "torch_npu_float8",
            lambda new: _selected(new, [(2, 65)], 4, 128, 16, 31, dtype=FP8),
        ),
        Case("v32_decode", lambda new: _large(new, [(1, 65536)] * 8, 64), large=True),
        Case("v32_prefill", lambda new: _large(new, [(2048, 8192)], 64), large=True),
        Case("v32_int8", lambda new: _large(new, [(2, 65536)] * 4, 64, dtype=INT8), large=True),
        Case("v32_float8", lambda new: _large(new, [(1, 65536)] * 4, 64, dtype=FP8), large=True),
        Case("glm5_decode", lambda new: _large(new, [(1, 65536)] * 8, 32), large=True),
        Case("glm5_float8", lambda new: _large(new, [(4, 32768)] * 2, 32, dtype=FP8), large=True),
        Case("glm5_int8", lambda new: _large(new, [(4, 32768)] * 2, 32, dtype=INT8), large=True),
    ),
}
