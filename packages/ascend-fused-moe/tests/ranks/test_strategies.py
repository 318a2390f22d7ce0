"""Every way of communication gives what one process gives (real processes, gloo)."""

from __future__ import annotations

from typing import Any

import pytest
import torch

METHODS = ("all_gather", "all_to_all")
LAYOUTS = ((2, 1), (1, 2), (3, 1), (1, 3), (4, 1), (1, 4), (2, 2))
MORE = [{"method": method, "sequence_parallel": sp} for method in METHODS for sp in (False, True)]


@pytest.mark.parametrize(("dp", "tp"), LAYOUTS)
def test_uneven_tokens(ranks: Any, dp: int, tp: int) -> None:
    tokens = tuple(7 - 2 * d for d in range(dp))
    ranks.check(*({"dp": dp, "tp": tp, "tokens": tokens, **more} for more in MORE))


@pytest.mark.parametrize(
    ("dp", "tp", "tokens"),
    [
        (2, 1, (5, 0)),
        (3, 1, (0, 4, 0)),
        (2, 2, (0, 3)),
        (2, 2, (1, 0)),
        (1, 4, (1,)),
        (2, 1, (0, 0)),
        (1, 3, (0,)),
    ],
)
def test_a_rank_without_tokens_joins(ranks: Any, dp: int, tp: int, tokens: tuple[int, ...]) -> None:
    """Bug case 1: it makes the same collectives as the others, and all of them come back."""
    layers = [{"dp": dp, "tp": tp, "tokens": tokens, "shared": "replicated", **m} for m in MORE]
    for results in ranks.check(*layers):
        assert_members_make_the_same_calls(results, tp)


def assert_members_make_the_same_calls(results: list[dict[str, Any]], tp: int) -> None:
    parts = [results[first : first + tp] for first in range(0, len(results), tp)]
    places = [results[first::tp] for first in range(tp)]
    for name, groups in (("ep", [results]), ("tp", parts), ("dp", places)):
        for members in groups:
            assert all(one["calls"][name] == members[0]["calls"][name] for one in members), name


@pytest.mark.parametrize(("experts", "dp", "tp"), [(10, 4, 1), (10, 2, 2), (7, 1, 3), (2, 3, 1)])
def test_experts_that_ranks_do_not_divide(ranks: Any, experts: int, dp: int, tp: int) -> None:
    """Bug case 5: places without an expert hold NaN here, and are never routed to."""
    given = {"experts": experts, "top_k": 2, "dp": dp, "tp": tp, "tokens": (9, 4, 1, 6)[:dp]}
    ranks.check(*({**given, **more} for more in MORE))


def test_128_experts_on_six_ranks(ranks: Any) -> None:
    """Bug case 5 as it was reported: DP3 x TP2, and room for 22 experts on every rank."""
    given = {"experts": 128, "dp": 3, "tp": 2, "tokens": (9, 4, 0)}
    for results in ranks.check(*({**given, **more} for more in MORE)):
        assert [len(one["load"]) for one in results] == [22] * 6


@pytest.mark.parametrize("only", [(3,), (0,), (7,), (1, 6)])
def test_few_experts_have_all_tokens(ranks: Any, only: tuple[int, ...]) -> None:
    given = {"only": only, "top_k": len(only), "tokens": (5, 8)}
    ranks.check(*({"dp": 2, "tp": tp, **given, **more} for more in MORE for tp in (1, 2)))


@pytest.mark.parametrize("padding", [(2, 3), (0, 8), (5, 0), (5, 8)])
def test_rows_of_padding_visit_no_expert(ranks: Any, padding: tuple[int, ...]) -> None:
    """They hold NaN, and come out as 0."""
    given = {"padding": padding, "tokens": (5, 8)}
    ranks.check(*({"dp": 2, "tp": tp, **given, **more} for more in MORE for tp in (1, 2)))


def test_slices_of_all_experts(ranks: Any) -> None:
    given = {"expert_parallel": False, "method": "all_gather"}
    ranks.check(
        *(
            {"dp": dp, "tp": tp, "tokens": tokens, "sequence_parallel": shared_out, **given}
            for dp, tp, tokens in ((1, 2, (5,)), (1, 4, (3,)), (2, 2, (4, 7)), (3, 1, (2, 0, 5)))
            for shared_out in (False, True)
        )
    )


def test_one_rank(ranks: Any) -> None:
    ranks.check({"dp": 1, "tp": 1, "tokens": (5,)}, {"dp": 1, "tp": 1, "tokens": (0,)})


def test_bfloat16(ranks: Any) -> None:
    given = {"dp": 2, "tp": 2, "tokens": (9, 6), "dtype": torch.bfloat16}
    ranks.check(*({**given, **more} for more in MORE))


@pytest.mark.parametrize("limit", [0.5, 0.0])
def test_swiglu_limit_in_routed_and_shared_experts(ranks: Any, limit: float) -> None:
    """Bug case 7; without the limit outputs differ by far more than the tolerance."""
    given = {"dp": 2, "tp": 2, "tokens": (9, 6), "limit": limit}
    ranks.check(
        *({**given, "method": m, "shared": "tensor_parallel"} for m in METHODS),
        *(
            {**given, "method": m, "shared": "sequence_parallel", "sequence_parallel": True}
            for m in METHODS
        ),
    )


@pytest.mark.parametrize("chunk", [1, 3, 4, 100])
def test_chunks_of_tokens(ranks: Any, chunk: int) -> None:
    """A part whose tokens are spent takes part in the rest without any."""
    given = {"dp": 2, "options": {"dp_chunk_tokens": chunk}, "shared": "local_tokens"}
    for tokens in ((7, 4), (0, 5)):
        for method in METHODS:
            layers = [{"tp": tp, "tokens": tokens, "method": method, **given} for tp in (1, 2)]
            for layer, results in zip(layers, ranks.check(*layers, choices=False), strict=True):
                assert_members_make_the_same_calls(results, layer["tp"])


def test_tokens_of_the_parts_are_asked_of_the_ranks(ranks: Any) -> None:
    given = {"dp": 2, "tp": 2, "tokens": (3, 6), "ask": True}
    ranks.check(*({**given, **more} for more in MORE))


def test_streams_of_their_own(ranks: Any) -> None:
    given = {"dp": 2, "tp": 2, "tokens": (3, 6), "options": {"overlap": True}}
    ranks.check(*({**given, "method": m, "shared": "tensor_parallel"} for m in METHODS))
