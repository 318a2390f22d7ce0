"""Exchanges of rows, on simulated groups of any size."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from ascend_ops_core import InvalidInputError
from ascend_ops_core.communication import (
    all_gather_and_unpad,
    all_to_all,
    ep_local_sizes,
    features_to_rows,
    lmhead_all_to_all,
    pad_and_reduce,
    pad_to_rows,
)
from ascend_ops_core.testing.simulated_group import SimulatedGroup, on_ranks

RANKS = (1, 2, 3, 5)


@pytest.mark.parametrize("ranks", RANKS)
@pytest.mark.parametrize("tokens", [0, 1, 4])
def test_lm_head_gets_whole_rows(ranks: int, tokens: int) -> None:
    logits = torch.randn(ranks * tokens, ranks * 7)
    got = on_ranks(
        ranks,
        lambda group: lmhead_all_to_all(
            logits[:, group.rank_in_group * 7 : (group.rank_in_group + 1) * 7], group
        ),
    )
    assert torch.equal(torch.cat(got), logits)


@pytest.mark.parametrize("ranks", RANKS)
@pytest.mark.parametrize("inner", [(), (3,)], ids=str)
def test_features_to_rows(ranks: int, inner: tuple[int, ...]) -> None:
    tokens = torch.randn(ranks, 4, ranks * 2, *inner)
    got = on_ranks(ranks, lambda group: features_to_rows(tokens[group.rank_in_group], group))
    assert torch.equal(torch.cat(got, dim=1), tokens.flatten(0, 1))


@pytest.mark.parametrize("ranks", RANKS)
@pytest.mark.parametrize("rows", [0, 3])
def test_all_to_all_into_a_given_tensor(ranks: int, rows: int) -> None:
    parts = torch.randn(ranks, ranks, rows, 2)
    received = torch.full((ranks, ranks, rows, 2), float("nan"))

    def one(group: SimulatedGroup) -> None:
        place = received[group.rank_in_group]
        got = all_to_all(parts[group.rank_in_group], group, place)
        assert got.data_ptr() == place.data_ptr()

    on_ranks(ranks, one)
    assert torch.equal(received, parts.transpose(0, 1))


def test_a_platforms_communicator_is_asked_first() -> None:
    calls = []
    group = SimpleNamespace(
        world_size=2,
        device_communicator=SimpleNamespace(all_to_all_into=lambda *given: calls.append(given)),
    )
    strided = torch.randn(3, 2).T
    received = all_to_all(strided, group)
    ((into, sent),) = calls
    assert into is received
    assert sent.is_contiguous()
    assert into.is_contiguous()
    assert torch.equal(sent, strided)


@pytest.mark.parametrize(
    ("tokens", "parts"), [((5,), 1), ((5,), 3), ((4, 7, 0), 2), ((1, 0), 2), ((0, 0), 1)], ids=str
)
def test_gather_and_reduce_are_inverse(tokens: tuple[int, ...], parts: int) -> None:
    ranks, sizes = len(tokens) * parts, ep_local_sizes(tokens, parts)
    whole = [torch.randn(count, 3) for count in tokens]

    def share(rank: int) -> torch.Tensor:
        d, t = divmod(rank, parts)
        return whole[d][t * sizes[d] : (t + 1) * sizes[d]]

    gathered = on_ranks(
        ranks, lambda group: all_gather_and_unpad(share(group.rank_in_group), tokens, parts, group)
    )
    assert all(torch.equal(one, torch.cat(whole)) for one in gathered)
    reduced = on_ranks(
        ranks,
        lambda group: pad_and_reduce(
            torch.cat(whole) * (group.rank_in_group + 1), tokens, parts, group
        ),
    )
    factor = sum(range(1, ranks + 1))
    for rank, got in enumerate(reduced):
        wanted = pad_to_rows(share(rank) * factor, sizes[rank // parts])
        torch.testing.assert_close(got, wanted)


def test_sizes_of_shares() -> None:
    assert ep_local_sizes((4, 7, 0, 1), 2) == [2, 4, 0, 1]


@pytest.mark.parametrize(
    ("call", "limit"),
    [
        (lambda g: features_to_rows(torch.zeros(2, 5), g), "same number of features"),
        (lambda g: lmhead_all_to_all(torch.zeros(3, 5), g), "same number of tokens"),
        (lambda g: all_gather_and_unpad(torch.zeros(2, 5), (2, 2), 2, g), "2 ranks"),
        (lambda g: all_gather_and_unpad(torch.zeros(3, 5), (2, 2), 1, g), "2 a rank"),
        (lambda g: pad_and_reduce(torch.zeros(3, 5), (2, 2), 1, g), "4 tokens"),
    ],
    ids=["features", "logits", "ranks", "share", "rows"],
)
def test_refusals(call, limit: str) -> None:
    with pytest.raises(InvalidInputError, match=limit):
        on_ranks(2, call)
