"""Experts on ranks that do not divide them (bug case 5)."""

from __future__ import annotations

import pytest
import torch
from ascend_fused_moe.expert_partition import ExpertPartition
from ascend_ops_core import InvalidInputError
from hypothesis import given
from hypothesis import strategies as st


def test_128_experts_on_six_ranks() -> None:
    partition = ExpertPartition(128, 6)
    assert partition.counts == (22, 22, 21, 21, 21, 21)
    assert (partition.capacity, partition.places) == (22, 132)
    empty = set(range(132)) - set(partition.physical_ids().tolist())
    assert empty == {3 * 22 - 1, 4 * 22 - 1, 5 * 22 - 1, 6 * 22 - 1}


@given(st.integers(1, 70), st.integers(1, 20))
def test_each_expert_is_placed_once(experts: int, ranks: int) -> None:
    partition = ExpertPartition(experts, ranks)
    held = [list(partition.experts_of(rank)) for rank in range(ranks)]
    assert [len(one) for one in held] == list(partition.counts)
    assert [e for one in held for e in one] == list(range(experts))
    assert max(partition.counts) - min(partition.counts) <= 1
    physical = partition.physical_ids()
    for rank, one in enumerate(held):
        for place, expert in enumerate(one):
            assert physical[expert] == rank * partition.capacity + place


@given(st.integers(1, 70), st.integers(1, 20))
def test_ids_become_physical_ones_as_the_table_says(experts: int, ranks: int) -> None:
    partition = ExpertPartition(experts, ranks)
    ids = torch.arange(experts)
    for dtype in (torch.int32, torch.int64):
        got = partition.to_physical(ids.to(dtype).view(1, -1))
        assert got.dtype == torch.int64
        assert torch.equal(got[0], partition.physical_ids())
    assert partition.to_physical(torch.tensor([-1, -7])).tolist() == [-1, -1]


def test_nothing_to_hold_is_refused() -> None:
    with pytest.raises(InvalidInputError, match="experts=0"):
        ExpertPartition(0, 2)
    with pytest.raises(InvalidInputError, match="ranks=0"):
        ExpertPartition(4, 0)
