"""The indexer's operators against loops in Python: scores, fixed-width selection, key rows."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from ascend_attention.ops.indexer import indexer_scores, quantize_index_rows, reference
from ascend_attention.ops.indexer import select_entries as select_for_layout
from ascend_attention.ops.indexer.cases import CASES
from ascend_attention.step import StepLayout
from ascend_ops_core import InvalidInputError
from ascend_ops_core.cases import Inputs
from ascend_ops_core.devices import facts_of
from ascend_ops_core.registry import find
from ascend_ops_core.testing import assert_close

INT8, FP8 = torch.int8, torch.float8_e4m3fn
DTYPES = (torch.float32, torch.bfloat16, torch.float16, INT8, FP8)
LARGEST = {INT8: 127.0, FP8: 448.0}
NAN = float("nan")


class Paged:
    """Keys of some requests in shuffled pages of a slab; whatever is no key is NaN (or 127).

    Attributes:
        keys: for every request its keys, float64, scales applied.
    """

    def __init__(
        self, counts: list[int], dtype: torch.dtype, width: int = 9, page: int = 5
    ) -> None:
        columns = max([1, *(-(-count // page) for count in counts)])
        blocks = len(counts) * columns + 1
        self.table = torch.randperm(blocks)[: len(counts) * columns].view(-1, columns)
        eight = dtype in LARGEST
        slab = torch.full((blocks, page * width + 3), 127.0 if eight else NAN).to(dtype)
        self.cache = slab[:, 3:].unflatten(1, (page, width))
        self.scale = torch.full((blocks, page), NAN) if eight else None
        self.keys = []
        for r, count in enumerate(counts):
            rows = (torch.randn(count, width) * (30 if eight else 1)).to(dtype)
            scale = torch.rand(count) + 0.5
            for e in range(count):
                block = self.table[r, e // page]
                _bits(self.cache)[block, e % page] = _bits(rows)[e]
                if self.scale is not None:
                    self.scale[block, e % page] = scale[e]
            self.keys.append(rows.double() * (scale.double()[:, None] if eight else 1))


def _bits(values: torch.Tensor) -> torch.Tensor:
    return values.view(torch.int8) if values.element_size() == 1 else values


def score(query: torch.Tensor, weights: torch.Tensor, key: torch.Tensor) -> float:
    """Of one token for one entry, head by head."""
    pairs = zip(query.double().tolist(), weights.double().tolist(), strict=True)
    k = key.tolist()
    return sum(w * max(0.0, math.fsum(a * b for a, b in zip(q, k, strict=True))) for q, w in pairs)


def batch_of(counts: list[int], tokens: list[int]) -> tuple[torch.Tensor, torch.Tensor]:
    """Request and visible entries of every token; the last of a request sees all, others less."""
    request, visible = [], []
    for r, (count, new) in enumerate(zip(counts, tokens, strict=True)):
        request += [r] * new
        visible += [max(0, count - back) for back in range(new - 1, -1, -1)]
    return torch.tensor(request, dtype=torch.int64), torch.tensor(visible, dtype=torch.int64)


def made(
    counts: list[int], tokens: list[int], dtype: torch.dtype, heads: int = 3
) -> tuple[Any, ...]:
    paged = Paged(counts, dtype)
    request, visible = batch_of(counts, tokens)
    query = (torch.randn(len(request), heads, 9) * (30 if dtype in LARGEST else 1)).to(dtype)
    return paged, query, torch.randn(len(request), heads), request, visible


BATCHES = [
    ([5], [0]),
    ([0], [1]),
    ([1], [1]),
    ([17, 3, 0], [1, 1, 1]),
    ([12, 30, 7], [5, 1, 17]),
]


@pytest.mark.oracle("ascend_attention::indexer_scores", "loops over tokens, entries and heads")
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("index", [torch.int64, torch.int32], ids=str)
@pytest.mark.parametrize(("counts", "tokens"), BATCHES)
def test_scores_equal_loops(
    counts: list[int], tokens: list[int], index: torch.dtype, dtype: torch.dtype
) -> None:
    torch.manual_seed(len(counts))
    paged, query, weights, request, visible = made(counts, tokens, dtype)
    width = paged.table.shape[1] * 5
    got = indexer_scores(
        query,
        weights,
        paged.cache,
        paged.table.to(index),
        request.to(index),
        visible.to(index),
        width,
        key_scale=paged.scale,
    )
    assert got.shape == (len(request), width)
    assert got.dtype == torch.float32
    expected = torch.full(got.shape, float("-inf"), dtype=torch.float64)
    for t in range(len(request)):
        for e in range(int(visible[t])):
            expected[t, e] = score(query[t], weights[t], paged.keys[request[t]][e])
    assert torch.equal(got == float("-inf"), expected == float("-inf"))
    assert_close(got, expected, scale=1000.0 if dtype in LARGEST else 10.0)


@pytest.mark.parametrize("tile", [1, 200])
def test_tiles_of_scores_do_not_matter(tile: int, monkeypatch: pytest.MonkeyPatch) -> None:
    paged, query, weights, request, visible = made([12, 30, 7], [5, 1, 17], torch.float32)
    whole = indexer_scores(query, weights, paged.cache, paged.table, request, visible, 30)
    monkeypatch.setattr(reference, "_TILE_ELEMENTS", tile)
    again = indexer_scores(query, weights, paged.cache, paged.table, request, visible, 30)
    assert_close(again, whole)


def selected(paged: Paged, query: Any, weights: Any, request: Any, visible: Any, *rest: int) -> Any:
    op = torch.ops.ascend_attention.select_entries
    return op(query, weights, paged.cache, paged.scale, paged.table, request, visible, *rest)


@pytest.mark.oracle("ascend_attention::select_entries", "sorting the scores of loops in Python")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, INT8, FP8], ids=str)
@pytest.mark.parametrize("top_k", [1, 4, 30, 40])
@pytest.mark.parametrize(("counts", "tokens"), BATCHES)
def test_fixed_width_selection_equals_sorting(
    counts: list[int], tokens: list[int], top_k: int, dtype: torch.dtype
) -> None:
    torch.manual_seed(top_k)
    paged, query, weights, request, visible = made(counts, tokens, dtype)
    got = selected(paged, query, weights, request, visible, top_k, paged.table.shape[1] * 5)
    assert got.shape == (len(request), top_k)
    assert got.dtype == torch.int64
    for t in range(len(request)):
        seen = int(visible[t])
        keys = paged.keys[request[t]]
        scores = [score(query[t], weights[t], keys[e]) for e in range(seen)]
        best = sorted(range(seen), key=lambda e: -scores[e])[:top_k]
        kept = list(range(seen)) if seen <= top_k else best
        assert got[t].tolist() == kept + [-1] * (top_k - len(kept))


def test_padding_tokens_select_nothing_whatever_their_request() -> None:
    paged, query, weights, request, visible = made([12, 7], [2, 2], torch.float32)
    plain = selected(paged, query, weights, request, visible, 4, 15)
    request[3], visible[3] = -9, 0
    visible[1] = -1
    got = selected(paged, query, weights, request, visible, 4, 15)
    assert got[[1, 3]].tolist() == [[-1] * 4] * 2
    assert torch.equal(got[[0, 2]], plain[[0, 2]])


@pytest.mark.parametrize("most", [None, 9])
def test_quantised_keys_and_queries_select_for_a_layout(most: int | None) -> None:
    torch.manual_seed(5)
    paged = Paged([9, 9], INT8)
    layout = StepLayout.build([0, 1, 3], [37, 39])
    query, weights = torch.randn(3, 4, 9), torch.rand(3, 4)
    got = select_for_layout(
        query,
        weights,
        paged.cache,
        paged.table,
        layout,
        4,
        3,
        key_scale=paged.scale,
        most_entries=most,
    )
    for t, r in enumerate(layout.request.tolist()):
        top = query[t].abs().amax(1, keepdim=True)
        exact = torch.round(query[t] * 127 / top) * top / 127
        scores = [score(exact, weights[t], paged.keys[r][e]) for e in range(9)]
        best = sorted(range(9), key=lambda e: -scores[e])[:3]
        assert got[t].tolist() == best


def test_scores_and_selection_ask_the_host_for_nothing() -> None:
    """On the meta device there is no value to ask for, and a tensor left on the CPU is an error."""
    for name in ("indexer_scores", "select_entries"):
        for case in CASES[name]:
            arguments = case.make(Inputs("meta"))
            if not case.large:
                operator = find(f"ascend_attention::{name}")
                got, fake = operator.reference(*arguments), operator.fake(*arguments)
                assert (got.device.type, got.shape, got.dtype) == ("meta", fake.shape, fake.dtype)


def nearest_float8(value: float) -> float:
    """Round half to even among the values of float8_e4m3fn, from the format's definition."""
    sizes = [
        math.ldexp(8 + m, e - 10) if e else math.ldexp(m, -9) for e in range(16) for m in range(8)
    ][:-1]
    code = min(range(len(sizes)), key=lambda c: (abs(sizes[c] - abs(value)), c % 2))
    return math.copysign(sizes[code], value)


@pytest.mark.oracle("ascend_attention::quantize_index_rows", "rows and code points one by one")
@pytest.mark.parametrize("dtype", [INT8, FP8], ids=str)
@pytest.mark.parametrize("scale_dtype", [torch.float32, torch.float16], ids=str)
@pytest.mark.parametrize("count", [0, 1, 3, 17])
def test_key_rows_equal_loops(count: int, scale_dtype: torch.dtype, dtype: torch.dtype) -> None:
    torch.manual_seed(count)
    cache = torch.full((6, 4 * 9 + 2), 3.0).to(dtype)[:, 2:].unflatten(1, (4, 9))
    scales = torch.full((6, 4, 2), 0.25, dtype=scale_dtype)[:, :, 1]
    rows = 3 * torch.randn(count, 9)
    place = torch.randperm(24)[:count]
    block, offset = place // 4, place % 4
    block[2::5] = -1
    quantize_index_rows(cache, scales, rows, block, offset)
    untouched = torch.ones(6, 4, dtype=torch.bool)
    for n in range(count):
        if block[n] < 0:
            continue
        untouched[block[n], offset[n]] = False
        scale = rows[n].abs().max() / LARGEST[dtype]
        rounded = round if dtype == INT8 else nearest_float8
        expected = [float(rounded(float(v / scale))) for v in rows[n]]
        assert cache[block[n], offset[n]].float().tolist() == expected
        assert scales[block[n], offset[n]] == scale.to(scale_dtype)
    assert bool((cache.float()[untouched] == 3.0).all())
    assert bool((scales[untouched] == 0.25).all())


def _arguments(**changed: Any) -> dict[str, Any]:
    plain = {
        "query": torch.randn(2, 3, 8),
        "head_weights": torch.randn(2, 3),
        "key_cache": torch.randn(4, 5, 8),
        "block_table": torch.zeros(1, 2, dtype=torch.int64),
        "request": torch.zeros(2, dtype=torch.int64),
        "visible": torch.ones(2, dtype=torch.int64),
        "width": 10,
    }
    return plain | changed


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"width": 11}, r"width=11.*0 to 10"),
        ({"width": -1}, "width=-1"),
        ({"query": torch.randn(2, 3, 7)}, "query of shape"),
        ({"query": torch.randn(2, 3, 8).half()}, "query of torch.float16"),
        ({"head_weights": torch.randn(2, 4)}, "head_weights of shape"),
        ({"head_weights": torch.randn(2, 3).half()}, "head_weights of torch.float16"),
        ({"visible": torch.ones(3, dtype=torch.int64)}, "visible of shape"),
        ({"request": torch.zeros(2)}, "request of torch.float32"),
        ({"block_table": torch.zeros(2, dtype=torch.int64)}, "block_table of shape"),
        ({"key_scale": torch.ones(4, 5)}, "with scales"),
        ({"key_cache": torch.ones(4, 5, 8, dtype=INT8)}, "without scales"),
        (
            {"key_cache": torch.ones(4, 5, 8, dtype=INT8), "key_scale": torch.ones(4, 4)},
            "key_scale of shape",
        ),
    ],
)
def test_bad_scores_are_refused(changed: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidInputError, match=message):
        indexer_scores(**_arguments(**changed))


def test_bad_rows_are_refused_before_anything_is_written() -> None:
    cache, scales = torch.zeros(2, 3, 4, dtype=INT8), torch.zeros(2, 3)
    rows, block = torch.ones(2, 4), torch.zeros(2, dtype=torch.int64)
    for bad in (
        (cache.float(), scales, rows, block, block),
        (cache, scales[:1], rows, block, block),
        (cache, scales, rows[:, :3], block, block),
        (cache, scales, rows.int(), block, block),
        (cache, scales, rows, block[:1], block),
        (cache, scales, rows, block, block.int()),
    ):
        with pytest.raises(InvalidInputError):
            quantize_index_rows(*bad)
    assert not cache.any()
    assert not scales.any()


def test_a_bound_beyond_the_table_and_no_places_are_refused() -> None:
    paged, layout = Paged([9], INT8), StepLayout.build([0, 1], [37])
    arguments = torch.randn(1, 3, 9), torch.ones(1, 3), paged.cache, paged.table, layout, 4
    with pytest.raises(InvalidInputError, match="most_entries=11"):
        select_for_layout(*arguments, 2, key_scale=paged.scale, most_entries=11)
    with pytest.raises(InvalidInputError, match="top_k=0"):
        select_for_layout(*arguments, 0, key_scale=paged.scale)


@pytest.mark.parametrize(
    ("family", "change", "reason"),
    [
        ("A2", {"dtype": FP8}, "A2 has no torch.float8_e4m3fn"),
        ("A3", {"dtype": FP8}, "A3 has no"),
        ("A5", {"dtype": FP8}, ""),
        ("A2", {"dtype": INT8}, ""),
        ("A2", {"heads": 129}, "129 heads, the kernel takes 128"),
        ("A5", {"width": 257}, "width 257, the kernel takes 256"),
        ("A2", {"stride": 2}, "stride 2 inside"),
    ],
)
def test_limits_of_the_kernel(family: str, change: dict[str, Any], reason: str) -> None:
    dtype, width = change.get("dtype", torch.float32), change.get("width", 8)
    heads, stride = change.get("heads", 4), change.get("stride", 1)

    def empty(*shape: int, dtype: torch.dtype = torch.int64) -> torch.Tensor:
        return torch.empty(shape, dtype=dtype, device="meta")

    arguments = (
        empty(2, heads, width, dtype=dtype),
        empty(2, heads, dtype=torch.float32),
        empty(4, 5, stride * width, dtype=dtype)[..., ::stride],
        empty(4, 5, dtype=torch.float32) if dtype in LARGEST else None,
        empty(1, 2),
        empty(2),
        empty(2),
        10,
    )
    operator = find("ascend_attention::indexer_scores")
    support = operator.supports("triton", facts_of(family), *arguments)
    assert reason in support.reason
    assert bool(support) == (not reason)
