"""Rows to their experts and back, against loops."""

from __future__ import annotations

import pytest
import torch
from ascend_fused_moe.ops.permutation import combine_rows, permute_rows, reference
from ascend_fused_moe.ops.permutation.npu import supports_combine_rows, supports_permute_rows
from ascend_ops_core import InvalidInputError
from ascend_ops_core.devices import FAMILIES, facts_of
from ascend_ops_core.testing import assert_close


def by_loops(
    ids: list[list[int]], experts: int
) -> tuple[list[tuple[int, int]], dict[tuple[int, int], int], list[int]]:
    """Token and expert of each row, the row of each choice, and the rows of each expert."""
    rows, at = [], {}
    for expert in range(experts):
        for token, chosen in enumerate(ids):
            for choice, one in enumerate(chosen):
                if one == expert:
                    at[token, choice] = len(rows)
                    rows.append((token, expert))
    return rows, at, [sum(e == expert for _, e in rows) for expert in range(experts)]


@pytest.mark.oracle("ascend_fused_moe::permute_rows", "loops over experts and tokens")
@pytest.mark.parametrize("tokens", [0, 1, 3, 17])
@pytest.mark.parametrize("top_k", [0, 1, 4])
@pytest.mark.parametrize("dtype", [torch.int32, torch.int64], ids=str)
def test_rows_of_one_expert_keep_the_order_of_tokens(
    tokens: int, top_k: int, dtype: torch.dtype
) -> None:
    """Also where ids are none, on either side; on a device those rows lie behind."""
    x = torch.randn(tokens, 6)
    ids = torch.randint(-2, 7, (tokens, top_k), dtype=dtype)
    expected, at, counts = by_loops(ids.tolist(), 5)
    whole = torch.tensor([token for token, _ in expected], dtype=torch.int64)
    for rows, index, found in (permute_rows(x, ids, 5), reference.permute_rows(x, ids, 5)):
        assert torch.equal(rows[: len(expected)], x[whole])
        assert found.tolist() == counts
        assert index.tolist() == [[at.get((t, j), -1) for j in range(top_k)] for t in range(tokens)]
    assert len(permute_rows(x, ids, 5)[0]) == len(expected)
    assert len(reference.permute_rows(x, ids, 5)[0]) == tokens * top_k


@pytest.mark.oracle("ascend_fused_moe::combine_rows", "loops over tokens and choices")
@pytest.mark.parametrize("tokens", [0, 1, 3, 17])
@pytest.mark.parametrize("top_k", [0, 1, 4])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("complete", [True, False])
def test_rows_come_back_weighted(
    tokens: int, top_k: int, dtype: torch.dtype, complete: bool
) -> None:
    count = tokens * top_k
    rows, weights = torch.randn(count, 6).to(dtype), torch.rand(tokens, top_k)
    index = torch.randperm(count).view(tokens, top_k)
    if not complete:
        index[torch.rand(tokens, top_k) < 0.4] = -1
    expected = torch.zeros(tokens, 6)
    for token in range(tokens):
        for choice, at in enumerate(index[token].tolist()):
            if at >= 0:
                expected[token] += weights[token, choice] * rows[at].float()
    assert_close(combine_rows(rows, index, weights, complete=complete), expected, scale=2)


def test_what_is_in_no_row_is_not_read() -> None:
    rows = torch.tensor([[1.0], [torch.nan]])
    assert combine_rows(rows, torch.tensor([[0, -1]]), torch.ones(1, 2)).tolist() == [[1.0]]


def test_bad_input_is_named() -> None:
    x, ids = torch.zeros(3, 2), torch.zeros(3, 2, dtype=torch.int64)
    for given, text in (
        ((x, ids[:2], 4), "ids"),
        ((x, ids.float(), 4), "float32"),
        ((x, ids, 0), "experts=0"),
        ((x[0], ids, 4), "x"),
    ):
        with pytest.raises(InvalidInputError, match=text):
            permute_rows(*given)
    with pytest.raises(InvalidInputError, match=r"weights \[3, 1\] and index \[3, 2\]"):
        combine_rows(x, ids, torch.zeros(3, 1))
    with pytest.raises(InvalidInputError, match="int32"):
        combine_rows(x, ids.int(), torch.zeros(3, 2))


def test_limits_of_torch_npu() -> None:
    x, ids = torch.zeros(4, 8), torch.zeros(4, 2, dtype=torch.int64)
    facts = {name: facts_of(name) for name in FAMILIES}
    assert [name for name, one in facts.items() if supports_permute_rows(one, x, ids, 5)] == [
        "A2",
        "A3",
    ]
    for given, text in (
        ((x.int(), ids, 5), "int32"),
        ((x, ids, 10240), "fewer than 10240"),
        ((x[:0], ids[:0], 5), "empty"),
    ):
        assert text in supports_permute_rows(facts["A3"], *given).reason
    rows, weights = torch.zeros(8, 8), torch.zeros(4, 2)
    assert supports_combine_rows(facts["A2"], rows, ids, weights, True)
    for name, given, text in (
        ("A3", (rows, ids, weights, True), "documented for A2"),
        ("A2", (rows, ids, weights, False), "without a row"),
        ("A2", (rows[:7], ids, weights, True), "7 rows for 8 choices"),
        ("A2", (rows.int(), ids, weights, True), "int32"),
    ):
        assert text in supports_combine_rows(facts[name], *given).reason
