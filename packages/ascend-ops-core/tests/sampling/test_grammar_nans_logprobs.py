"""Grammar bitmask, count of NaN and wanted ids against loops in Python."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from ascend_ops_core.devices import facts_of
from ascend_ops_core.errors import InvalidInputError
from ascend_ops_core.ops.sampling import apply_grammar_bitmask, logprob_token_ids, num_nans
from ascend_ops_core.registry import find


@pytest.mark.oracle("ascend_ops_core::apply_grammar_bitmask", "bits of Python integers")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("vocabulary", [1, 3, 32, 63, 65, 1000])
def test_bitmask_equals_bits(vocabulary: int, dtype: torch.dtype) -> None:
    torch.manual_seed(vocabulary)
    logits = torch.randn(4, vocabulary).to(dtype)
    words = -(-vocabulary // 32) + 1  # a word more than needed
    bitmask = torch.randint(-(2**31), 2**31, (3, words)).int()
    rows = [2, -1, 0]
    expected = logits.float().tolist()
    for packed, row in zip(bitmask.tolist(), rows, strict=True):
        for v in range(vocabulary if row >= 0 else 0):
            if not packed[v // 32] >> (v % 32) & 1:
                expected[row][v] = -math.inf
    apply_grammar_bitmask(logits, bitmask, torch.tensor(rows, dtype=torch.int32))
    assert logits.float().tolist() == expected


def test_bitmask_of_ones_and_of_zeros() -> None:
    logits = torch.randn(2, 65)
    before = logits.clone()
    bitmask = torch.tensor([[-1] * 3, [0] * 3], dtype=torch.int32)
    apply_grammar_bitmask(logits, bitmask, torch.tensor([1, 0]))
    assert torch.equal(logits[1], before[1])
    assert torch.isneginf(logits[0]).all()


def test_bitmask_refuses_before_it_writes() -> None:
    logits, bitmask, rows = torch.ones(2, 65), torch.zeros(1, 3).int(), torch.tensor([0])
    bad = [
        ("65 tokens take 3", (logits, bitmask[:, :2], rows)),
        ("bitmask of torch.int64", (logits, bitmask.long(), rows)),
        ("rows of shape", (logits, bitmask, torch.tensor([0, 1]))),
        ("rows of torch.float32", (logits, bitmask, torch.zeros(1))),
        ("logits of torch.int32", (logits.int(), bitmask, rows)),
    ]
    for message, arguments in bad:
        with pytest.raises(InvalidInputError, match=message):
            apply_grammar_bitmask(*arguments)
    assert torch.equal(logits, torch.ones(2, 65))


def test_bitmask_kernel_refuses_rows_with_gaps() -> None:
    operator = find("ascend_ops_core::apply_grammar_bitmask")
    args = (torch.ones(65, 2).T, torch.zeros(1, 3).int(), torch.tensor([0]))
    assert "stride 2" in operator.supports("triton", facts_of("A5"), *args).reason


@pytest.mark.oracle("ascend_ops_core::num_nans", "math.isnan, element by element")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize(("rows", "width"), [(0, 3), (3, 0), (1, 1), (3, 63), (65, 65)])
def test_num_nans(rows: int, width: int, dtype: torch.dtype) -> None:
    torch.manual_seed(rows)
    x = torch.randn(rows, width)
    x = torch.where(x > 1, float("nan"), torch.where(x < -1, float("inf"), x)).to(dtype)
    got = num_nans(x)
    assert got.dtype == torch.int32
    assert got.tolist() == [sum(math.isnan(v) for v in row) for row in x.tolist()]


def test_num_nans_refuses() -> None:
    with pytest.raises(InvalidInputError, match="logits of shape"):
        num_nans(torch.zeros(3))
    with pytest.raises(InvalidInputError, match="logits of torch"):
        num_nans(torch.zeros(3, 2, dtype=torch.int64))
    logits = torch.empty(1, (1 << 24) + 1, device="meta")
    support = find("ascend_ops_core::num_nans").supports("triton", facts_of("A2"), logits)
    assert "16777216" in support.reason


def wanted(
    sampled: list[int], top: list[list[int]], custom: list[list[int]], columns: int
) -> tuple[list[list[int]], list[list[bool]]]:
    """``custom`` holds what the request of each row asked for."""
    ids, valid = [], []
    for b, first in enumerate(sampled):
        tail = custom[b] or top[b]
        ids.append([first, *tail, *[0] * (columns - len(tail))])
        valid.append([True] * (1 + len(tail)) + [False] * (columns - len(tail)))
    return ids, valid


@pytest.mark.oracle("ascend_ops_core::logprob_token_ids", "lists joined in Python")
@pytest.mark.parametrize(("top", "columns"), [(0, 4), (3, 4), (4, 4), (7, 9)])
def test_logprob_token_ids(top: int, columns: int) -> None:
    torch.manual_seed(columns)
    requests, counts = [2, 0, 1, 1, 2], [0, 4, 1]
    sampled = torch.randint(0, 99, (5,))
    top_ids = torch.randint(0, 99, (5, top)) if top else None
    custom_ids = torch.randint(0, 99, (3, 4)).int()
    got = logprob_token_ids(
        sampled, top_ids, torch.tensor(requests), torch.tensor(counts).int(), custom_ids, columns
    )
    asked = [custom_ids[r, : counts[r]].tolist() for r in requests]
    tops = [[] for _ in requests] if top_ids is None else top_ids.tolist()
    ids, valid = wanted(sampled.tolist(), tops, asked, columns)
    assert got[0].dtype == torch.int64
    assert got[0].tolist() == ids
    assert got[1].tolist() == valid


def test_logprob_token_ids_refuses() -> None:
    good: dict[str, Any] = {
        "sampled": torch.tensor([1, 2]),
        "top_ids": torch.ones(2, 3, dtype=torch.int64),
        "requests": torch.tensor([0, 0]),
        "custom_counts": torch.tensor([0]),
        "custom_ids": torch.ones(1, 4, dtype=torch.int64),
        "columns": 4,
    }
    bad = [
        ("3 top ids take as many", {"columns": 2}),
        ("sampled of torch.float32", {"sampled": torch.ones(2)}),
        ("top_ids of shape", {"top_ids": torch.ones(3, 3, dtype=torch.int64)}),
        ("requests of shape", {"requests": torch.tensor([0])}),
        ("custom_ids of shape", {"custom_ids": torch.ones(2, 4, dtype=torch.int64)}),
    ]
    for message, wrong in bad:
        with pytest.raises(InvalidInputError, match=message):
            logprob_token_ids(**(good | wrong))
