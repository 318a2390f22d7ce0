"""Scores and selection of blocks against loops over tokens."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from ascend_attention.ops import block_selection as family
from ascend_attention.ops.block_selection import (
    best_blocks,
    block_scores,
    per_request,
    reference,
    select_blocks,
)
from ascend_attention.ops.block_selection.cases import CASES
from ascend_ops_core import InvalidInputError
from ascend_ops_core.cases import Case, Inputs
from ascend_ops_core.devices import facts_of
from ascend_ops_core.registry import find

SCORED = [case for case in CASES["block_scores"] if not case.large]
SELECTED = [case for case in CASES["best_blocks"] if not case.large]


def expected_scores(arguments: tuple[Any, ...]) -> torch.Tensor:
    query, keys, table, request, position, columns, first, stride, init, local = arguments
    tokens, heads, _ = query.shape
    page = keys.shape[1]
    out = torch.full((tokens, heads, columns), -math.inf)
    for t in range(tokens):
        p = int(position[t])
        seen = p // page + 1 if p >= 0 else 0
        for c in range(columns):
            block = first + c * stride
            if block >= seen:
                continue
            for g in range(heads):
                best = -1e30
                for u in range(block * page, min((block + 1) * page, p + 1)):
                    key = keys[int(table[request[t], block]), u - block * page]
                    product = float(query[t, g].double() @ key.double())
                    if product > best:
                        best = product
                if block < init:
                    best = 1e30
                if block >= seen - local:
                    best = 1e29
                out[t, g, c] = best
    return out


@pytest.mark.oracle("ascend_attention::block_scores", "loops over queries, blocks and tokens")
@pytest.mark.parametrize("case", SCORED, ids=str)
def test_scores_equal_loops(case: Case) -> None:
    arguments = case.arguments()
    wanted = expected_scores(arguments)
    for run in (find("ascend_attention::block_scores"), reference.block_scores):
        got = run(*arguments)
        assert got.dtype == torch.float32
        assert torch.equal(got, wanted)
    if arguments[2].numel():
        assert torch.equal(per_request.block_scores(*arguments), wanted)


def test_tiles_do_not_matter(monkeypatch: pytest.MonkeyPatch) -> None:
    arguments = next(case for case in SCORED if case.name == "many_queries").arguments()
    wanted = expected_scores(arguments)
    for module, name, value in (
        (reference, "_TILE_ELEMENTS", 1),
        (per_request, "_TILE_ELEMENTS", 1),
        (per_request, "_TILE_QUERIES", 3),
    ):
        monkeypatch.setattr(module, name, value)
        assert torch.equal(module.block_scores(*arguments), wanted)


def expected_best(arguments: tuple[Any, ...]) -> tuple[torch.Tensor, torch.Tensor]:
    scores, ids, top_k, first, stride = arguments
    tokens, heads, candidates = scores.shape
    chosen = torch.full((tokens, heads, top_k), -1, dtype=torch.int32)
    values = torch.full((tokens, heads, top_k), -math.inf)
    for t in range(tokens):
        for g in range(heads):
            numbers = range(first, first + candidates * stride, stride)
            if ids is not None:
                numbers = ids[t, g].tolist()
            pairs = zip(scores[t, g].tolist(), numbers, strict=True)
            found = sorted((-s, n) for s, n in pairs if n >= 0 and s > -math.inf)[:top_k]
            for k, (score, number) in enumerate(found):
                chosen[t, g, k], values[t, g, k] = number, -score
    return chosen, values


@pytest.mark.oracle("ascend_attention::best_blocks", "sorted pairs of score and number")
@pytest.mark.parametrize("case", SELECTED, ids=str)
def test_best_blocks_equal_sorting(case: Case) -> None:
    arguments = case.arguments()
    wanted = expected_best(arguments)
    for run in (find("ascend_attention::best_blocks"), reference.best_blocks):
        for got, right in zip(run(*arguments), wanted, strict=True):
            assert got.dtype == right.dtype
            assert torch.equal(got, right)


@pytest.mark.parametrize("context", [1, 3, 4, 5, 16, 17, 70])
@pytest.mark.parametrize(("init", "local"), [(0, 1), (2, 1), (3, 3), (0, 0)])
def test_selection_is_exact(context: int, init: int, local: int) -> None:
    """From below a block to many more blocks than are kept, by the priorities themselves."""
    page, top_k = 4, 4
    case = next(case for case in SCORED if case.name == "one")
    _, keys, table, request, position, *_ = case.arguments()
    new = Inputs(seed=context)
    keys = new.randint(-2, 3, 20, page, 8).float()
    table = new.permutation(20, torch.int32)[None]
    query = new.randint(-2, 3, 3, 2, 8).float()
    request, position = torch.zeros(3, dtype=torch.int32), torch.tensor([context - 1, -1, 0]).int()
    got = select_blocks(
        query, keys, table, request, position, top_k, init_blocks=init, local_blocks=local
    )
    assert got.dtype == torch.int32
    for t, p in enumerate(position.tolist()):
        seen = p // page + 1 if p >= 0 else 0
        for g in range(2):
            ranked = []
            for block in range(seen):
                rows = keys[int(table[0, block])][: p + 1 - block * page]
                rank = (2, -float((rows @ query[t, g]).max()), block)
                if block < init:
                    rank = (0, 0.0, block)
                if block >= seen - local:
                    rank = (1, 0.0, block)
                ranked.append(rank)
            right = [block for *_, block in sorted(ranked)][:top_k]
            assert got[t, g].tolist() == right + [-1] * (top_k - len(right))


def test_rounds_of_queries_do_not_matter(monkeypatch: pytest.MonkeyPatch) -> None:
    arguments = next(case for case in SCORED if case.name == "many_queries").arguments()[:5]
    before = select_blocks(*arguments, 3)
    monkeypatch.setattr(family, "_MOST_SCORES", 1)
    assert torch.equal(select_blocks(*arguments, 3), before)


def test_bound_sets_the_width() -> None:
    arguments = next(case for case in SCORED if case.name == "wide").arguments()[:5]
    right = select_blocks(*arguments, 5)
    assert torch.equal(select_blocks(*arguments, 5, most_tokens=40), right)
    with pytest.raises(InvalidInputError, match=r"most_tokens=177.*11 blocks of 16 rows"):
        select_blocks(*arguments, 5, most_tokens=177)


def test_a_position_outside_the_table_is_refused() -> None:
    query, keys, table, request, position, *_rest = next(
        case for case in SCORED if case.name == "one"
    ).arguments()
    with pytest.raises(IndexError):
        block_scores(query, keys, table, request, position + 16, 2)
    with pytest.raises(IndexError):
        block_scores(query, keys, table, request + 1, position, 1)


def test_it_asks_the_host_for_nothing() -> None:
    for name in ("block_scores", "best_blocks"):
        operator = find(f"ascend_attention::{name}")
        for case in CASES[name]:
            if case.large:
                continue
            arguments = case.make(Inputs("meta"))
            got, fake = operator.reference(*arguments), operator.fake(*arguments)
            for one, other in zip(
                *((x if isinstance(x, tuple) else (x,)) for x in (got, fake)), strict=True
            ):
                assert (one.device.type, one.shape, one.dtype) == ("meta", other.shape, other.dtype)


@pytest.mark.parametrize(
    ("place", "bad", "message"),
    [
        (0, torch.randn(2, 2, 15), "key_cache of shape"),
        (0, torch.randn(2, 16), "query of shape"),
        (1, torch.randn(3, 4, 16).half(), "key_cache of torch.float16"),
        (1, torch.randn(3, 0, 16), "rows of a block=0"),
        (2, torch.zeros(1, 2), "block_table of torch.float32"),
        (3, torch.zeros(3, dtype=torch.int32), "request of shape"),
        (4, torch.zeros(2), "position of torch.float32"),
        (5, -1, "columns=-1"),
    ],
)
def test_bad_scores_are_refused(place: int, bad: Any, message: str) -> None:
    index = torch.zeros(2, dtype=torch.int32)
    table = torch.zeros(1, 2, dtype=torch.int32)
    arguments: list[Any] = [torch.randn(2, 2, 16), torch.randn(3, 4, 16), table, index, index, 2]
    arguments[place] = bad
    with pytest.raises(InvalidInputError, match=message):
        block_scores(*arguments)


@pytest.mark.parametrize(
    ("arguments", "given", "message"),
    [
        ((torch.randn(2, 3), 2), {}, "scores of shape"),
        ((torch.randn(2, 1, 3).double(), 2), {}, "scores of torch.float64"),
        ((torch.randn(2, 1, 3), 0), {}, "top_k=0"),
        ((torch.randn(2, 1, 3), 2), {"block_stride": 0}, "block_stride=0"),
        ((torch.randn(2, 1, 3), 2), {"ids": torch.zeros(2, 1, 3)}, "ids of torch.float32"),
        ((torch.randn(2, 1, 3), 2), {"ids": torch.zeros(2, 3).int()}, "ids of shape"),
    ],
)
def test_bad_candidates_are_refused(
    arguments: tuple[Any, ...], given: dict[str, Any], message: str
) -> None:
    with pytest.raises(InvalidInputError, match=message):
        best_blocks(*arguments, **given)


def _empty(*shape: int, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
    return torch.empty(shape, dtype=dtype, device="meta")


@pytest.mark.parametrize(
    ("family_name", "changed", "reason"),
    [
        ("A3", {}, ""),
        ("A3", {"page": 24}, "blocks of 24 rows"),
        ("A3", {"page": 16}, ""),
        ("A5", {"page": 16}, "blocks of 16 rows"),
        ("A3", {"heads": 65}, "65 heads"),
        ("A3", {"dim": 257}, "heads of width 257"),
    ],
)
def test_limits_of_scores(family_name: str, changed: dict[str, int], reason: str) -> None:
    sizes = {"heads": 4, "dim": 128, "page": 128} | changed
    index = _empty(2, dtype=torch.int32)
    support = find("ascend_attention::block_scores").supports(
        "triton",
        facts_of(family_name),
        _empty(2, sizes["heads"], sizes["dim"]),
        _empty(4, sizes["page"], sizes["dim"]),
        _empty(1, 16, dtype=torch.int32),
        index,
        index,
        *(16, 0, 1, 0, 1),
    )
    assert reason in support.reason
    assert bool(support) == (not reason)


@pytest.mark.parametrize(
    ("candidates", "top_k", "reason"),
    [(8192, 16, ""), (8193, 16, "8193 candidates"), (8, 65, "top_k=65")],
)
def test_limits_of_selection(candidates: int, top_k: int, reason: str) -> None:
    scores = _empty(2, 4, candidates, dtype=torch.float32)
    operator = find("ascend_attention::best_blocks")
    support = operator.supports("triton", facts_of("A3"), scores, None, top_k, 0, 1)
    assert reason in support.reason
    assert bool(support) == (not reason)


def test_public_names() -> None:
    assert family.__all__ == ["best_blocks", "block_scores", "select_blocks"]
