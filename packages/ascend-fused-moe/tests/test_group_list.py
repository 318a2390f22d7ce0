"""Group lists know what they hold (bug case 4)."""

from __future__ import annotations

import pytest
import torch
from ascend_fused_moe.group_list import GroupList, GroupListKind
from ascend_ops_core import InvalidInputError
from hypothesis import given
from hypothesis import strategies as st

COUNTS, CUMULATIVE = GroupListKind.COUNTS, GroupListKind.CUMULATIVE


def group_list(values: list[int], kind: GroupListKind) -> GroupList:
    return GroupList(torch.tensor(values, dtype=torch.int64), kind)


@given(st.lists(st.integers(0, 50), min_size=0, max_size=9))
def test_conversion_both_ways(counts: list[int]) -> None:
    running = [sum(counts[: e + 1]) for e in range(len(counts))]
    for given_list in (group_list(counts, COUNTS), group_list(running, CUMULATIVE)):
        given_list.check(sum(counts), len(counts))
        assert given_list.counts().kind is COUNTS
        assert given_list.counts().values.tolist() == counts
        assert given_list.cumulative().kind is CUMULATIVE
        assert given_list.cumulative().values.tolist() == running
        assert given_list.cumulative().counts().values.tolist() == counts


def test_a_list_of_its_kind_is_not_copied() -> None:
    for kind in GroupListKind:
        given_list = group_list([0, 3], kind)
        assert (given_list.counts() is given_list) == (kind is COUNTS)
        assert (given_list.cumulative() is given_list) == (kind is CUMULATIVE)


def test_the_kinds_are_numbered_as_by_torch_npu() -> None:
    assert (CUMULATIVE.value, COUNTS.value) == (0, 1)


def test_sums_taken_for_counts_are_refused() -> None:
    with pytest.raises(InvalidInputError, match=r"\[2, 2, 5\] of kind counts: .*9 rows.*are 5\."):
        group_list([2, 2, 5], COUNTS).check(5, 3)
    group_list([2, 2, 5], CUMULATIVE).check(5, 3)


def test_counts_taken_for_sums_are_refused() -> None:
    with pytest.raises(
        InvalidInputError, match=r"\[2, 0, 3\] of kind cumulative: expert 1 would have -2 rows"
    ):
        group_list([2, 0, 3], CUMULATIVE).check(5, 3)
    with pytest.raises(InvalidInputError, match=r"stands for 3 rows, and there are 5"):
        group_list([0, 2, 3], CUMULATIVE).check(5, 3)


@pytest.mark.parametrize("values", [[2, 3], [2, 0, 0, 3], []])
def test_another_number_of_experts_is_refused(values: list[int]) -> None:
    with pytest.raises(InvalidInputError, match=rf"of {len(values)} values.*3 local experts"):
        group_list(values, COUNTS).check(5, 3)


@pytest.mark.parametrize("dtype", [torch.int32, torch.float32], ids=str)
def test_another_dtype_is_refused(dtype: torch.dtype) -> None:
    with pytest.raises(InvalidInputError, match=rf"of {dtype}: .*int64"):
        GroupList(torch.tensor([1, 2]).to(dtype), COUNTS)


def test_another_number_of_axes_is_refused() -> None:
    with pytest.raises(InvalidInputError, match=r"shape \[1, 2\].*one value for each"):
        GroupList(torch.tensor([[1, 2]]), COUNTS)


def test_on_a_device_only_what_needs_no_wait_is_checked() -> None:
    given_list = GroupList(torch.empty(3, dtype=torch.int64, device="meta"), COUNTS)
    given_list.check(5, 3)
    with pytest.raises(InvalidInputError, match=r"3 values.*4 local experts"):
        given_list.check(5, 4)
