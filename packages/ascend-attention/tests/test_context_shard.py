"""Which tokens lie on which rank: against a walk over the tokens, and a step's slots."""

from __future__ import annotations

import pytest
import torch
from ascend_attention.context_shard import ContextShard
from ascend_ops_core.errors import InvalidInputError
from ascend_ops_core.ops.slot_mapping import compute_slot_mapping

SHARES = [(1, 1), (2, 1), (2, 4), (3, 1), (3, 2), (4, 16), (5, 3)]


def walk(ranks: int, interleave: int, tokens: int) -> list[list[int]]:
    """Tokens of every rank in order."""
    own: list[list[int]] = [[] for _ in range(ranks)]
    for token in range(tokens):
        own[token // interleave % ranks].append(token)
    return own


@pytest.mark.parametrize(("ranks", "interleave"), SHARES)
def test_rows_follow_the_walk(ranks: int, interleave: int) -> None:
    most = 3 * ranks * interleave + 2
    own = walk(ranks, interleave, most)
    for rank in range(ranks):
        shard = ContextShard(ranks, rank, interleave)
        expected = torch.full((most + 2,), -1)
        expected[own[rank]] = torch.arange(len(own[rank]))
        assert torch.equal(shard.row(torch.arange(most + 2))[:most], expected[:most])
        assert shard.row(torch.tensor([-1, -5])).tolist() == [-1, -1]
        rows = torch.arange(-1, len(own[rank]))
        assert shard.token(rows).tolist() == [-1, *own[rank]]
        counts = [sum(token < length for token in own[rank]) for length in range(most + 1)]
        assert [shard.count(length) for length in range(most + 1)] == counts
        assert shard.count(torch.arange(-2, most + 1)).tolist() == [0, 0, *counts]
    for length in range(most + 1):
        whole = walk(ranks, interleave, length)
        shard = ContextShard(ranks, ranks - 1, interleave)
        assert shard.most(length) == max(map(len, whole))


@pytest.mark.parametrize(("ranks", "interleave"), SHARES)
def test_rows_lie_where_the_engine_puts_them(ranks: int, interleave: int) -> None:
    """vLLM's slots, whose operator is proved on its own."""
    page, tokens = 2 * interleave, 9 * ranks * interleave + 1
    table = torch.randperm(40)[: -(-tokens // (page * ranks))].int()[None]
    position = torch.arange(tokens)
    for rank in range(ranks):
        slots = torch.empty(tokens, dtype=torch.int64)
        compute_slot_mapping(
            slots,
            torch.tensor([0, tokens], dtype=torch.int32),
            position,
            table,
            page,
            ranks=ranks,
            rank=rank,
            interleave=interleave,
        )
        row = ContextShard(ranks, rank, interleave).row(position)
        place = table[0, row.clamp(min=0) // page].long() * page + row % page
        assert torch.equal(torch.where(row >= 0, place, -1), slots)


@pytest.mark.parametrize(
    ("given", "message"),
    [((0, 0, 1), "ranks=0"), ((2, 2, 1), "rank=2"), ((2, -1, 1), "rank=-1"), ((2, 0, 0), "inter")],
)
def test_what_makes_no_sense_is_refused(given: tuple[int, int, int], message: str) -> None:
    with pytest.raises(InvalidInputError, match=message):
        ContextShard(*given)
