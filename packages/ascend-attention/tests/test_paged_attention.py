"""Attention over a paged cache against brute force, and how its kernel and adaptor cut the work."""

from __future__ import annotations

import re
from typing import Any

import pytest
import torch
from ascend_attention.ops.paged_attention import npu, paged_attention
from ascend_attention.ops.paged_attention.cases import step
from ascend_attention.ops.paged_attention.plan import plan
from ascend_attention.ops.paged_attention.runs import equal_runs
from ascend_ops_core.cases import Inputs
from ascend_ops_core.devices import FAMILIES
from ascend_ops_core.errors import InvalidInputError
from ascend_ops_core.testing import assert_close

DTYPES = [torch.float32, torch.bfloat16, torch.float16]
NAN = float("nan")
ROWS = 4


@pytest.mark.oracle("ascend_attention::paged_attention", "brute force in float64, token by token")
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(
    ("contexts", "tokens"),
    [([], []), ([1], [1]), ([3, 17, 9], [3, 1, 2]), ([40, 33], [15, 2])],
)
@pytest.mark.parametrize(("sinks", "window"), [(False, None), (True, None), (True, 5)])
def test_attention_equals_brute_force(
    contexts: list[int], tokens: list[int], sinks: bool, window: int | None, dtype: torch.dtype
) -> None:
    torch.manual_seed(len(contexts))
    heads, key_heads, width = 6, 2, 5
    used = [-(-context // ROWS) for context in contexts]
    cache = torch.full((2, sum(used) + 1, ROWS, key_heads, width), NAN, dtype=dtype)
    table = torch.full((max(len(contexts), 1), max(used, default=1)), sum(used))
    order, rows = torch.randperm(sum(used)), []
    for r, context in enumerate(contexts):
        own, order = order[: used[r]], order[used[r] :]
        table[r, : used[r]] = own
        row = torch.randn(2, context, key_heads, width).to(dtype)
        for p in range(context):
            cache[:, own[p // ROWS], p % ROWS] = row[:, p]
        rows.append(row.double())
    place = [
        (r, p)
        for r, (context, n) in enumerate(zip(contexts, tokens, strict=True))
        for p in range(context - n, context)
    ] + [(0, -1)] * 2
    query = torch.randn(len(place), heads, width).to(dtype)
    sink = torch.randn(heads).to(dtype) if sinks else None
    request, position = (
        torch.tensor([one[i] for one in place], dtype=torch.int64) for i in range(2)
    )
    out, lse = paged_attention(
        query, *cache, table, request, position, 0.3, sinks=sink, window=window
    )
    assert out.dtype == dtype
    assert lse.dtype == torch.float32
    for t, (r, p) in enumerate(place):
        if p < 0:
            assert not out[t].any()
            assert lse[t].eq(float("-inf")).all()
            continue
        first = 0 if window is None else max(0, p + 1 - window)
        for h in range(heads):
            keys, values = rows[r][:, first : p + 1, h // (heads // key_heads)]
            logits = 0.3 * keys @ query[t, h].double()
            if sink is not None:
                logits = torch.cat([logits, sink[h : h + 1].double()])
            weights = logits.softmax(-1)[: len(keys)]
            assert_close(out[t, h], weights @ values, scale=2)
            assert_close(lse[t, h], logits.logsumexp(-1), scale=4)


@pytest.mark.parametrize(
    ("name", "broken"),
    [
        ("query", {"query": torch.zeros(2, 4, 8, dtype=torch.int32)}),
        ("key_cache", {"key_cache": torch.zeros(3, ROWS, 2, 9)}),
        ("value_cache", {"value_cache": torch.zeros(3, ROWS, 1, 8)}),
        ("4 query heads with 3 key heads", {"key_cache": torch.zeros(3, ROWS, 3, 8),
                                            "value_cache": torch.zeros(3, ROWS, 3, 8)}),
        ("block_table", {"block_table": torch.zeros(3, dtype=torch.int64)}),
        ("request", {"request": torch.zeros(2)}),
        ("position", {"position": torch.zeros(3, dtype=torch.int64)}),
        ("sinks", {"sinks": torch.zeros(3)}),
        ("window=0", {"window": 0}),
        ("2 query_ends and 1 seq_lens", {"query_ends": [1, 2], "seq_lens": [4]}),
        ("2 query_ends and 2 seq_lens", {"query_ends": [1, 2], "seq_lens": [4, 4]}),
    ],
)  # fmt: skip
def test_bad_arguments_are_refused(name: str, broken: dict[str, Any]) -> None:
    given = {
        "query": torch.zeros(2, 4, 8),
        "key_cache": torch.zeros(3, ROWS, 2, 8),
        "value_cache": torch.zeros(3, ROWS, 2, 8),
        "block_table": torch.zeros(1, 2, dtype=torch.int64),
        "request": torch.zeros(2, dtype=torch.int64),
        "position": torch.zeros(2, dtype=torch.int64),
    }
    with pytest.raises(InvalidInputError, match=name):
        paged_attention(**(given | broken), scale=1.0)


@pytest.mark.parametrize("family", ["A2", "A3", "A5"])
@pytest.mark.parametrize("width", [8, 64, 128, 512])
@pytest.mark.parametrize(
    ("tokens", "requests"), [(1, 1), (7, 7), (64, 64), (2048, 1), (2080, 33), (12, 3)]
)
def test_plan_fits_and_fills(family: str, width: int, tokens: int, requests: int) -> None:
    facts = FAMILIES[family]
    cut = plan(
        facts, tokens=tokens, requests=requests, heads=32, key_heads=8, width=width, columns=40,
        per_block=128, window=0, itemsize=2,
    )  # fmt: skip
    assert cut.by_tokens == (tokens > 4 * requests)
    assert cut.rows <= 128
    assert cut.taken >= 16
    assert cut.taken * cut.padded * 4 <= facts.l0c_bytes
    units = cut.programs // cut.splits
    assert units == (-(-tokens // cut.taken) * 32 if cut.by_tokens else tokens * 8)
    assert cut.splits == 1 or units < facts.cube_cores


def test_requests_of_one_length_share_a_call() -> None:
    assert list(equal_runs([1, 2, 3, 10, 10, 12, 14])) == [
        (0, 3, 0, 1),
        (3, 1, 3, 7),
        (5, 2, 10, 2),
    ]
    assert list(equal_runs([])) == []
    assert list(equal_runs([0, 0])) == []


@pytest.mark.parametrize(
    ("reason", "given"),
    [
        (None, {}),
        ("device family A5", {"family": "A5"}),
        ("queries of torch.float32", {"dtype": torch.float32}),
        ("only the device knows", {"host": False}),
        ("sinks", {"sinks": True}),
        ("130 heads with 2 key heads", {"heads": 130}),
        ("heads of 24", {"width": 24}),
        ("blocks of 16 rows.*several tokens", {"rows": 16}),
        (None, {"rows": 16, "requests": [(40, 1), (3, 1)]}),
        ("blocks of 24 rows.*one token", {"rows": 24, "requests": [(40, 1)]}),
        ("window of 9", {"window": 9}),
        (None, {"window": 140}),
        (None, {"window": 9, "requests": [(40, 2), (3, 3)]}),
        ("torch.int64", {"index": torch.int64}),
        ("gaps", {"slab": True}),
        ("no queries", {"requests": [(3, 0)]}),
    ],
)
def test_limits_of_the_fused_operator(reason: str | None, given: dict[str, Any]) -> None:
    settings = {
        "requests": [(140, 1), (9, 4)], "heads": 4, "key_heads": 2, "width": 32,
        "dtype": torch.bfloat16, "rows": 128, "host": True,
    }  # fmt: skip
    given = settings | given
    facts = FAMILIES[given.pop("family", "A3")]
    support = npu.supports_paged_attention(facts, *step(Inputs("meta"), **given))
    if reason is None:
        assert support
        return
    assert not support
    assert re.search(reason, support.reason)
