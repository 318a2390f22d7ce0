"""Edges between candidates, and the walk along them, against loops in Python."""

from __future__ import annotations

import pytest
import torch
from ascend_ops_core.errors import InvalidInputError
from ascend_specdec.ops.candidate_selection import selector_edges, selector_walk

NAN, LEAST = float("nan"), float("-inf")


@pytest.mark.oracle("ascend_specdec::selector_edges", "loops in Python, in float64")
@pytest.mark.parametrize(("batch", "places", "width"), [(0, 3, 2), (1, 1, 1), (2, 3, 4)])
def test_edges_equal_loops(batch: int, places: int, width: int) -> None:
    torch.manual_seed(width)
    vocabulary, rank = 11, 5
    unary = torch.randn(batch, places, width)
    candidates = torch.randint(0, vocabulary, (batch, places, width))
    anchors = torch.randint(0, vocabulary, (batch,), dtype=torch.int32)
    before, behind = torch.randn(vocabulary, rank), torch.randn(vocabulary, rank)
    gates = torch.randn(batch, places, rank)
    got = selector_edges(unary, candidates, anchors, before, behind, gates)
    assert got.shape == (batch, places, width, width)
    for b in range(batch):
        for place in range(places):
            for p in range(width):
                source = int(candidates[b, place - 1, p]) if place else int(anchors[b])
                for c in range(width):
                    target = int(candidates[b, place, c])
                    total = float(unary[b, place, c]) + sum(
                        float(before[source, r] * gates[b, place, r] * behind[target, r])
                        for r in range(rank)
                    )
                    assert float(got[b, place, p, c]) == pytest.approx(total, abs=1e-5)


def walked(edges: list, candidates: list) -> list[int]:
    """The walk, the first of equal edges before the others."""
    at, tokens = 0, []
    for rows, row in zip(edges, candidates, strict=True):
        best, value = 0, LEAST
        for c, edge in enumerate(rows[at]):
            if edge > value:
                best, value = c, edge
        at = best
        tokens.append(row[at])
    return tokens


@pytest.mark.oracle("ascend_specdec::selector_walk", "a loop over places in Python")
@pytest.mark.parametrize(
    ("batch", "places", "width"), [(0, 2, 2), (1, 1, 1), (7, 5, 4), (2, 3, 33)]
)
def test_the_walk_equals_a_loop(batch: int, places: int, width: int) -> None:
    torch.manual_seed(places)
    # Rounded, so that edges tie.
    edges = (2 * torch.randn(batch, places, width, width)).round()
    edges[torch.rand(edges.shape) < 0.2] = NAN
    edges[torch.rand(edges.shape) < 0.2] = LEAST
    candidates = torch.randint(0, 1000, (batch, places, width), dtype=torch.int32)
    got = selector_walk(edges, candidates)
    assert got.dtype == torch.int32
    assert got.tolist() == [
        walked(one.tolist(), tokens.tolist()) for one, tokens in zip(edges, candidates, strict=True)
    ]


def test_ties_go_to_the_lowest_and_nothing_left_to_the_first() -> None:
    edges = torch.tensor([[[[1.0, 2.0, 2.0]] * 3, [[NAN] * 3] * 3, [[LEAST] * 3] * 3]])
    candidates = torch.arange(9).view(1, 3, 3)
    assert selector_walk(edges, candidates).tolist() == [[1, 3, 6]]


def test_greedy_is_not_the_best_path() -> None:
    """The walk takes the better first edge, though a better path goes by the other."""
    edges = torch.tensor([[[[1.0, 0.0]] * 2, [[0.0, 0.0], [9.0, 0.0]]]])
    assert selector_walk(edges, torch.tensor([[[5, 6], [7, 8]]])).tolist() == [[5, 7]]


def test_bad_input_is_refused() -> None:
    tokens = torch.zeros(1, 2, 3, dtype=torch.int64)
    with pytest.raises(InvalidInputError, match="edges of shape"):
        selector_walk(torch.zeros(1, 2, 3, 4), tokens)
    with pytest.raises(InvalidInputError, match="0 candidates"):
        selector_walk(torch.zeros(1, 2, 0, 0), tokens[..., :0])
    with pytest.raises(InvalidInputError, match="edges with strides"):
        selector_walk(torch.zeros(1, 2, 3, 3).transpose(2, 3), tokens)
    with pytest.raises(InvalidInputError, match="successors of shape"):
        selector_edges(
            torch.zeros(1, 2, 3), tokens, torch.zeros(1, dtype=torch.int64),
            torch.zeros(4, 2), torch.zeros(4, 3), torch.zeros(1, 2, 2),
        )  # fmt: skip
