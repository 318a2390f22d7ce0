"""Ranks that share the blocks select what one rank alone selects."""

from __future__ import annotations

import pytest
import torch
from ascend_attention.layers.block_parallel_decode import (
    MiniMaxM3TPDecodeScoreMetadata,
    build_tp_score_metadata,
    minimax_m3_index_tp_block_parallel_decode,
)
from ascend_attention.ops.block_selection import select_blocks
from ascend_ops_core import InvalidInputError
from ascend_ops_core.cases import Inputs
from ascend_ops_core.testing.simulated_group import SimulatedGroup, on_ranks

PAGE, TOP_K = 4, 5


def _step(contexts: list[int], heads: int) -> tuple[torch.Tensor, ...]:
    """One query each of requests of small integers, padding behind them."""
    new = Inputs()
    columns = max(-(-context // PAGE) for context in contexts) + 1
    keys = new.randint(-2, 3, len(contexts) * columns, PAGE, 8).float()
    table = new.permutation(len(keys), torch.int32).view(len(contexts), columns)
    position = torch.tensor([*(context - 1 for context in contexts), -1], dtype=torch.int32)
    request = torch.tensor([*range(len(contexts)), 0], dtype=torch.int32)
    return new.randint(-2, 3, len(position), heads, 8).float(), keys, table, request, position


@pytest.mark.parametrize(
    ("ranks", "heads"), [(1, 4), (2, 4), (4, 4), (8, 4), (8, 1), (3, 3), (6, 2), (5, 1)]
)
@pytest.mark.parametrize(("init", "local"), [(0, 1), (2, 3)])
def test_ranks_select_what_one_alone_selects(ranks: int, heads: int, init: int, local: int) -> None:
    """Ranks without any block of a short context, and replicated heads, are among them."""
    query, *step = _step([1, 9, 16, 77], heads)
    right = select_blocks(query, *step, TOP_K, init_blocks=init, local_blocks=local)
    own, copies = max(1, heads // ranks), max(1, ranks // heads)
    calls: list[list[str]] = []

    def select(group: SimulatedGroup) -> torch.Tensor:
        rank = group.rank_in_group
        metadata = build_tp_score_metadata(*step[1:], page=PAGE, rank=rank, ranks=ranks)
        first = rank // copies * own
        got = minimax_m3_index_tp_block_parallel_decode(
            query[:, first : first + own],
            step[0],
            metadata,
            TOP_K,
            group,
            total_heads=heads,
            init_blocks=init,
            local_blocks=local,
        )
        calls.append(group.calls)
        return got

    for rank, got in enumerate(on_ranks(ranks, select)):
        first = rank // copies * own
        assert torch.equal(got, right[:, first : first + own])
    assert all(made == (["all_gather", "all_to_all"] if ranks > 1 else []) for made in calls)


def test_metadata_keep_the_addresses_of_the_step() -> None:
    _, _, table, request, position = _step([30, 8], 1)
    metadata = [
        build_tp_score_metadata(
            table, request, position, page=PAGE, rank=r, ranks=3, most_tokens=30
        )
        for r in range(3)
    ]
    assert [one.first_block for one in metadata] == [0, 1, 2]
    # 8 blocks: three on each rank, so that the exchanged tensors have one shape.
    assert {(one.block_stride, one.columns) for one in metadata} == {(3, 3)}
    for one in metadata:
        assert one.block_table is table
        assert one.request is request
        assert one.position is position


def test_no_query_exchanges_nothing() -> None:
    query, keys, table, request, position = _step([9], 2)

    def select(group: SimulatedGroup) -> torch.Size:
        metadata = build_tp_score_metadata(
            table, request[:0], position[:0], page=PAGE, rank=group.rank_in_group, ranks=2
        )
        got = minimax_m3_index_tp_block_parallel_decode(
            query[:0, :1], keys, metadata, TOP_K, group, total_heads=2
        )
        assert not group.calls
        return got.shape

    assert on_ranks(2, select) == [(0, 1, TOP_K)] * 2


@pytest.mark.parametrize(
    ("heads", "total", "message"),
    [
        (2, 3, "3 index heads on 2 ranks"),
        (2, 2, "queries of 2 heads: 2 heads on 2 ranks are 1 a rank"),
        (1, 0, "total_heads=0"),
    ],
)
def test_uneven_heads_are_refused(heads: int, total: int, message: str) -> None:
    query, keys, *step = _step([9], heads)

    def select(group: SimulatedGroup) -> str:
        metadata = build_tp_score_metadata(*step, page=PAGE, rank=group.rank_in_group, ranks=2)
        with pytest.raises(InvalidInputError, match=message):
            minimax_m3_index_tp_block_parallel_decode(
                query, keys, metadata, TOP_K, group, total_heads=total
            )
        return "".join(group.calls)

    assert on_ranks(2, select) == ["", ""]


def test_metadata_of_another_rank_are_refused() -> None:
    query, keys, *step = _step([9], 1)

    def select(group: SimulatedGroup) -> None:
        metadata = build_tp_score_metadata(*step, page=PAGE, rank=0, ranks=2)
        with pytest.raises(InvalidInputError, match="metadata of rank 0 of 2"):
            minimax_m3_index_tp_block_parallel_decode(
                query, keys, metadata, TOP_K, group, total_heads=1
            )

    on_ranks(1, select)


@pytest.mark.parametrize(
    ("rank", "ranks", "most", "message"),
    [(2, 2, None, "rank=2"), (0, 0, None, "ranks=0"), (0, 2, 1000, "most_tokens=1000")],
)
def test_bad_metadata_are_refused(rank: int, ranks: int, most: int | None, message: str) -> None:
    _, _, *step = _step([9], 1)
    with pytest.raises(InvalidInputError, match=message):
        build_tp_score_metadata(*step, page=PAGE, rank=rank, ranks=ranks, most_tokens=most)


def test_metadata_are_frozen() -> None:
    _, _, *step = _step([9], 1)
    metadata = build_tp_score_metadata(*step, page=PAGE, rank=0, ranks=1)
    assert isinstance(metadata, MiniMaxM3TPDecodeScoreMetadata)
    with pytest.raises(AttributeError):
        metadata.columns = 3  # type: ignore[misc]
