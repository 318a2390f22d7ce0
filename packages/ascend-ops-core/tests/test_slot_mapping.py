"""Slot mapping against a loop over tokens."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from ascend_ops_core.devices import facts_of
from ascend_ops_core.errors import InvalidInputError
from ascend_ops_core.ops.slot_mapping import compute_slot_mapping
from ascend_ops_core.registry import find


def batch(requests: list[tuple[int, int]], blocks: int) -> tuple[torch.Tensor, ...]:
    """query_start_loc, positions and a block table of (first position, tokens) pairs."""
    starts = torch.tensor([0, *(count for _, count in requests)]).cumsum(0).int()
    ranges = [torch.arange(first, first + count) for first, count in requests]
    positions = torch.cat(ranges) if ranges else torch.empty(0, dtype=torch.int64)
    table = torch.randperm(len(requests) * blocks).int().view(len(requests), blocks)
    return starts, positions, table


@pytest.mark.oracle("ascend_ops_core::compute_slot_mapping", "a loop over tokens, owner by owner")
@pytest.mark.parametrize("dtype", [torch.int32, torch.int64], ids=str)
@pytest.mark.parametrize("requests", [[], [(0, 1)], [(5, 63), (0, 0), (31, 2)], [(7, 65)] * 3])
@pytest.mark.parametrize(
    ("block_size", "ranks", "interleave"), [(1, 1, 1), (16, 1, 1), (16, 2, 1), (12, 3, 4)]
)
def test_equals_a_loop(
    requests: list[tuple[int, int]],
    block_size: int,
    ranks: int,
    interleave: int,
    dtype: torch.dtype,
) -> None:
    starts, positions, table = batch(requests, 80 // block_size + 1)
    for rank in range(ranks):
        stored: dict[tuple[int, int], int] = {}
        expected = []
        for r, (first, count) in enumerate(requests):
            for x in range(first + count):
                entry = x // (block_size * ranks)
                mine = x // interleave % ranks == rank
                if mine:  # a rank fills its blocks one after the other
                    place = stored.setdefault((r, entry), 0)
                    stored[r, entry] += 1
                if x >= first:
                    slot = int(table[r, entry]) * block_size + place if mine else -1
                    expected.append(slot)
        slots = torch.full((len(positions) + 5,), 99, dtype=dtype)
        compute_slot_mapping(
            slots,
            starts,
            positions,
            table,
            block_size,
            ranks=ranks,
            rank=rank,
            interleave=interleave,
        )
        assert slots.tolist() == expected + [-1] * 5


def test_padded_rows_of_the_batch_get_no_slot() -> None:
    """Five requests of six tokens padded to 36: the phantom sixth row maps nowhere."""
    starts, positions, table = batch([(9, 6)] * 5, 2)
    padded = torch.cat((positions, torch.zeros(6, dtype=torch.int64)))
    slots = torch.zeros(36, dtype=torch.int64)
    compute_slot_mapping(slots, starts, padded, torch.cat((table, table)), 16)
    assert (slots[:30] >= 0).all()
    assert slots[:30].unique().numel() == 30
    assert slots[30:].tolist() == [-1] * 6


def test_ranks_share_the_positions_out() -> None:
    starts, positions, table = batch([(0, 96)], 2)
    all_slots = torch.empty(3, 96, dtype=torch.int64)
    for rank in range(3):
        compute_slot_mapping(
            all_slots[rank], starts, positions, table, 16, ranks=3, rank=rank, interleave=2
        )
    assert ((all_slots >= 0).sum(dim=0) == 1).all()
    for mine in all_slots:
        assert mine[mine >= 0].unique().numel() == 32


def test_refuses_before_it_writes() -> None:
    starts, positions, table = batch([(0, 4), (2, 3)], 2)
    slots = torch.full((8,), 99, dtype=torch.int64)
    good: dict[str, Any] = {
        "slots": slots,
        "query_start_loc": starts,
        "positions": positions,
        "block_table": table,
        "block_size": 16,
    }
    bad: list[tuple[str, dict[str, Any]]] = [
        ("slots of torch.float32", {"slots": torch.ones(8)}),
        ("slots with gaps", {"slots": torch.ones(16, dtype=torch.int64)[::2]}),
        ("query_start_loc of torch.int64", {"query_start_loc": starts.long()}),
        ("query_start_loc.*at least 1", {"query_start_loc": starts[:0]}),
        ("positions of shape", {"positions": positions[None]}),
        ("rows of block_table=1", {"block_table": table[:1]}),
        ("block_size=0", {"block_size": 0}),
        ("rank=2", {"ranks": 2, "rank": 2}),
        ("interleave=3", {"ranks": 2, "interleave": 3}),
    ]
    for message, wrong in bad:
        with pytest.raises(InvalidInputError, match=message):
            compute_slot_mapping(**(good | wrong))
    assert (slots == 99).all()


def test_limits_of_the_kernel() -> None:
    operator = find("ascend_ops_core::compute_slot_mapping")
    starts, positions, table = batch([(0, 4)], 2)
    slots = torch.empty(4, dtype=torch.int32)
    rest = (slots, starts, positions)
    facts = facts_of("A2")
    assert operator.supports("triton", facts, *rest, table, 128, 8, 0, 1)
    assert "4194304" in operator.supports("triton", facts, *rest, table, 1 << 20, 8, 0, 1).reason
    columns = table.repeat(3, 2).T
    assert "stride 4" in operator.supports("triton", facts, *rest, columns, 16, 1, 0, 1).reason
