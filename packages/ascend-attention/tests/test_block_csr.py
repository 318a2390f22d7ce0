"""The turned selection against loops over rows, queries and places."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from ascend_attention.ops import block_csr as family
from ascend_attention.ops.block_csr import k2q_csr
from ascend_attention.ops.block_csr.cases import CASES
from ascend_ops_core import InvalidInputError
from ascend_ops_core.cases import Case, Inputs
from ascend_ops_core.registry import find

SMALL = [case for case in CASES["k2q_csr"] if not case.large]


def rows_of(blocks: list[int], order: int) -> list[tuple[int, int]]:
    """Request and block of every row, by dealing out level after level."""
    by_request = [(b, j) for b, count in enumerate(blocks) for j in range(count)]
    return sorted(by_request, key=lambda row: row[1]) if order else by_request


def expected(arguments: tuple[Any, ...]) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    selected, cu_seqlens, cu_block_lens, order, rows, absolute = arguments
    tokens, heads, places = selected.shape
    starts = cu_seqlens.tolist()
    where = rows_of(cu_block_lens.diff().tolist(), order)
    row_ptr = torch.zeros(heads, rows + 1, dtype=torch.int32)
    q_ind = torch.full((heads, tokens * places), -1, dtype=torch.int32)
    slot = q_ind.clone()
    for h in range(heads):
        entries: list[tuple[int, int]] = []
        for r in range(rows):
            if r < len(where):
                request, block = where[r]
                entries += [
                    (t if absolute else t - starts[request], k)
                    for t in range(starts[request], starts[request + 1])
                    for k in range(places)
                    if int(selected[t, h, k]) == block
                ]
            row_ptr[h, r + 1] = len(entries)
        for i, (t, k) in enumerate(entries):
            q_ind[h, i], slot[h, i] = t, k
    return row_ptr, q_ind, slot


@pytest.mark.oracle("ascend_attention::k2q_csr", "loops over rows, queries and places")
@pytest.mark.parametrize("case", SMALL, ids=str)
def test_rows_equal_loops(case: Case) -> None:
    arguments = case.arguments()
    got = find("ascend_attention::k2q_csr")(*arguments)
    for one, right in zip(got, expected(arguments), strict=True):
        assert one.dtype == torch.int32
        assert torch.equal(one, right)


@pytest.mark.parametrize("order", [family.BY_REQUEST, family.BY_LEVEL])
def test_it_is_a_bijection_of_the_selection(order: int) -> None:
    """From the rows, every valid entry of the selection comes back once."""
    selected, cu_seqlens, cu_block_lens, *_ = next(
        case for case in SMALL if case.name == "by_level"
    ).arguments()
    row_ptr, q_ind, slot = k2q_csr(selected, cu_seqlens, cu_block_lens, order, q_global_offset=True)
    where = rows_of(cu_block_lens.diff().tolist(), order)
    assert row_ptr.shape[1] == len(where) + 1
    back = torch.full_like(selected, -1)
    for h in range(selected.shape[1]):
        for r, (_, block) in enumerate(where):
            for i in range(int(row_ptr[h, r]), int(row_ptr[h, r + 1])):
                at = int(q_ind[h, i]), h, int(slot[h, i])
                assert int(back[at]) == -1
                back[at] = block
    blocks = cu_block_lens.diff().repeat_interleave(cu_seqlens.diff().long()).view(-1, 1, 1)
    assert torch.equal(back, torch.where((selected >= 0) & (selected < blocks), selected, -1))


def test_it_asks_the_host_for_nothing() -> None:
    operator = find("ascend_attention::k2q_csr")
    for case in SMALL:
        arguments = case.make(Inputs("meta"))
        for got, fake in zip(
            operator.reference(*arguments), operator.fake(*arguments), strict=True
        ):
            assert (got.device.type, got.shape, got.dtype) == ("meta", fake.shape, fake.dtype)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"selected": torch.zeros(2, 3).int()}, "selected of shape"),
        ({"selected": torch.zeros(2, 1, 3)}, "selected of torch.float32"),
        ({"cu_seqlens": torch.zeros(0).int()}, "length of cu_seqlens=0"),
        ({"cu_block_lens": torch.zeros(3).int()}, "cu_block_lens of shape"),
        ({"cu_block_lens": torch.zeros(2)}, "cu_block_lens of torch.float32"),
        ({"order_method": 2}, "order_method=2"),
        ({"rows": -1}, "rows=-1"),
    ],
)
def test_bad_input_is_refused(changed: dict[str, Any], message: str) -> None:
    arguments: dict[str, Any] = {
        "selected": torch.zeros(2, 1, 3).int(),
        "cu_seqlens": torch.tensor([0, 2]).int(),
        "cu_block_lens": torch.tensor([0, 2]).int(),
    }
    with pytest.raises(InvalidInputError, match=message):
        k2q_csr(**(arguments | changed))


def test_public_names() -> None:
    assert family.__all__ == ["BY_LEVEL", "BY_REQUEST", "k2q_csr"]
