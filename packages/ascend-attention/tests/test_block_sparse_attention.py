"""Attention over selected blocks against loops in double precision."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from ascend_attention.ops import block_sparse_attention as family
from ascend_attention.ops.attention_states import merge_attention_states
from ascend_attention.ops.block_sparse_attention import (
    block_sparse_attention,
    by_block,
    on_cpu,
    reference,
)
from ascend_attention.ops.block_sparse_attention.cases import CASES
from ascend_ops_core import InvalidInputError
from ascend_ops_core.cases import Case, Inputs
from ascend_ops_core.devices import facts_of
from ascend_ops_core.registry import find
from ascend_ops_core.testing import assert_close

SMALL = [case for case in CASES["block_sparse_attention"] if not case.large]


def named(name: str) -> tuple[Any, ...]:
    return next(case for case in SMALL if case.name == name).arguments()


def expected(arguments: tuple[Any, ...]) -> tuple[torch.Tensor, torch.Tensor]:
    query, keys, values, selected, table, request, position, scale = arguments
    tokens, heads, _ = query.shape
    page, groups = keys.shape[1:3]
    out = torch.zeros(query.shape, dtype=torch.float64)
    lse = torch.full((tokens, heads), -torch.inf, dtype=torch.float64)
    for t in range(tokens):
        p = int(position[t])
        for h in range(heads if p >= 0 else 0):
            g = h // (heads // groups)
            places = []
            for number in selected[t, g].tolist():
                if number < 0:
                    break
                block = int(table[request[t], number])
                places += [
                    (block, u - number * page, g)
                    for u in range(number * page, min((number + 1) * page, p + 1))
                ]
            if places:
                k = torch.stack([keys[place] for place in places]).double()
                v = torch.stack([values[place] for place in places]).double()
                logits = (k @ query[t, h].double()) * scale
                out[t, h] = logits.softmax(0) @ v
                lse[t, h] = logits.logsumexp(0)
    return out, lse


@pytest.mark.oracle(
    "ascend_attention::block_sparse_attention", "loops over queries and heads, float64"
)
@pytest.mark.parametrize("case", SMALL, ids=str)
def test_attention_equals_loops(case: Case) -> None:
    arguments = case.arguments()
    out, lse = expected(arguments)
    for run in (block_sparse_attention, reference.block_sparse_attention):
        got, got_lse = run(*arguments)
        assert got.dtype == arguments[0].dtype
        assert_close(got, out)
        assert_close(got_lse, lse)


@pytest.mark.parametrize("tile", [1, 1 << 18])
@pytest.mark.parametrize("name", ["many_queries", "few_selected", "uneven_blocks", "joined"])
def test_attention_by_block_equals_loops(
    name: str, tile: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(by_block, "_TILE_ELEMENTS", tile)
    arguments = named(name)
    out, lse = expected(arguments)
    got, got_lse = by_block.block_sparse_attention(*arguments)
    assert_close(got, out)
    assert_close(got_lse, lse)


def test_requests_with_many_and_with_few_queries_take_their_own_ways(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    taken: list[int] = []
    run = by_block.block_sparse_attention

    def counted(query: torch.Tensor, *rest: Any) -> Any:
        taken.append(query.shape[0])
        return run(query, *rest)

    monkeypatch.setattr(on_cpu.by_block, "block_sparse_attention", counted)
    short_blocks = named("many_queries")
    out, _ = block_sparse_attention(*short_blocks)
    assert_close(out, expected(short_blocks)[0])
    assert not taken
    monkeypatch.setattr(on_cpu, "_LONG_BLOCK", short_blocks[1].shape[1])
    block_sparse_attention(*short_blocks)
    block_sparse_attention(*named("padding"))
    assert taken == [40]


def test_tiles_of_queries_do_not_matter(monkeypatch: pytest.MonkeyPatch) -> None:
    arguments = named("ragged")
    monkeypatch.setattr(reference, "_TILE_ELEMENTS", 1)
    assert_close(reference.block_sparse_attention(*arguments)[0], expected(arguments)[0])


@pytest.mark.parametrize("parts", [2, 3])
def test_parts_of_a_selection_merge_to_the_whole(parts: int) -> None:
    """Parts without any block included, of which nothing but the logarithm counts."""
    query, keys, values, selected, *rest = named("many_queries")
    whole = block_sparse_attention(query, keys, values, selected, *rest)
    places = torch.arange(selected.shape[2])
    outs, lses = [], []
    for part in range(parts):
        mine = selected[..., places % parts == part]
        out, lse = block_sparse_attention(query, keys, values, mine, *rest)
        outs.append(torch.where(lse[..., None] > -torch.inf, out, torch.nan))
        lses.append(lse)
    merged = merge_attention_states(torch.stack(outs), torch.stack(lses))
    for got, right in zip(merged, whole, strict=True):
        assert_close(got, right)


def test_the_order_of_selected_blocks_does_not_matter() -> None:
    arguments = list(named("joined"))
    arguments[6] = arguments[6] * 0 + 69  # all see more blocks than they select
    before = block_sparse_attention(*arguments)[0]
    arguments[3] = arguments[3].flip(-1).contiguous()
    assert_close(block_sparse_attention(*arguments)[0], before)


def test_all_blocks_selected_is_causal_attention() -> None:
    new = Inputs()
    tokens, page = 50, 16
    query, keys, values = (new.randn(tokens, heads, 8) for heads in (6, 2, 2))
    caches = [torch.full((4, page, 2, 8), torch.nan) for _ in range(2)]
    for cache, rows in zip(caches, (keys, values), strict=True):
        cache.view(-1, 2, 8)[:tokens] = rows
    table = torch.arange(4, dtype=torch.int32)[None]
    position = torch.arange(tokens, dtype=torch.int32)
    block = torch.arange(4, dtype=torch.int32)
    selected = torch.where(block <= position[:, None] // page, block, -1)
    out, _ = block_sparse_attention(
        query,
        *caches,
        selected[:, None].expand(-1, 2, -1),
        table,
        position * 0,
        position,
        8**-0.5,
    )
    right = torch.nn.functional.scaled_dot_product_attention(
        *(x.transpose(0, 1).double() for x in (query, keys, values)),
        is_causal=True,
        enable_gqa=True,
    )
    assert_close(out, right.transpose(0, 1))


@pytest.mark.parametrize("queries", [1, 40])
def test_a_block_outside_the_table_is_refused(queries: int) -> None:
    index = torch.zeros(queries, dtype=torch.int32)
    cache = torch.randn(3, 4, 1, 8)
    selected = index.view(-1, 1, 1) + 2
    with pytest.raises(IndexError):
        block_sparse_attention(
            torch.randn(queries, 2, 8), cache, cache, selected, selected[:1, 0].expand(1, 2) * 0,
            index, index + 7, 1.0,
        )  # fmt: skip


def test_it_asks_the_host_for_nothing() -> None:
    operator = find("ascend_attention::block_sparse_attention")
    for case in SMALL:
        arguments = case.make(Inputs("meta"))
        for got, fake in zip(
            operator.reference(*arguments), operator.fake(*arguments), strict=True
        ):
            assert (got.device.type, got.shape, got.dtype) == ("meta", fake.shape, fake.dtype)


@pytest.mark.parametrize(
    ("place", "bad", "message"),
    [
        (0, torch.randn(2, 4, 15), "key_cache of shape"),
        (0, torch.randn(2, 3, 16), "3 query heads with 2 key-value heads"),
        (1, torch.randn(3, 4, 2, 16).half(), "key_cache of torch.float16"),
        (2, torch.randn(3, 4, 1, 16), "value_cache of shape"),
        (3, torch.zeros(2, 2, 3, dtype=torch.int64), "selected of torch.int64"),
        (3, torch.zeros(2, 1, 3, dtype=torch.int32), "selected of shape"),
        (4, torch.zeros(2, dtype=torch.int32), "block_table of shape"),
        (5, torch.zeros(3, dtype=torch.int32), "request of shape"),
        (6, torch.zeros(2), "position of torch.float32"),
    ],
)
def test_bad_input_is_refused(place: int, bad: torch.Tensor, message: str) -> None:
    index = torch.zeros(2, dtype=torch.int32)
    arguments: list[Any] = [
        torch.randn(2, 4, 16),
        torch.randn(3, 4, 2, 16),
        torch.randn(3, 4, 2, 16),
        torch.zeros(2, 2, 3, dtype=torch.int32),
        torch.zeros(1, 2, dtype=torch.int32),
        index,
        index,
        1.0,
    ]
    arguments[place] = bad
    with pytest.raises(InvalidInputError, match=message):
        block_sparse_attention(*arguments)


@pytest.mark.parametrize(
    ("family_name", "changed", "reason"),
    [
        ("A3", {}, ""),
        ("A3", {"page": 24}, "blocks of 24 rows"),
        ("A3", {"page": 16}, ""),
        ("A5", {"page": 16}, "blocks of 16 rows"),
        ("A3", {"dim": 257}, "heads of width 257"),
        ("A3", {"places": 257}, "257 blocks a query"),
    ],
)
def test_limits(family_name: str, changed: dict[str, int], reason: str) -> None:
    sizes = {"dim": 128, "page": 128, "places": 16} | changed

    def empty(*shape: int, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
        return torch.empty(shape, dtype=dtype, device="meta")

    cache = empty(4, sizes["page"], 4, sizes["dim"])
    index = empty(2, dtype=torch.int32)
    support = find("ascend_attention::block_sparse_attention").supports(
        "triton",
        facts_of(family_name),
        empty(2, 64, sizes["dim"]),
        cache,
        cache,
        empty(2, 4, sizes["places"], dtype=torch.int32),
        empty(1, 16, dtype=torch.int32),
        index,
        index,
        1.0,
    )
    assert reason in support.reason
    assert bool(support) == (not reason)


def test_public_names() -> None:
    assert family.__all__ == ["block_sparse_attention"]
