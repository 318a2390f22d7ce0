"""The selection of tokens against sorting the scores of loops in Python, its tie rule included."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from ascend_attention.ops import token_indexer
from ascend_attention.ops.token_indexer import owners, per_request, reference, select_tokens
from ascend_attention.ops.token_indexer.cases import CASES
from ascend_ops_core import InvalidInputError
from ascend_ops_core.cases import Case, Inputs, cases_of
from ascend_ops_core.devices import facts_of
from ascend_ops_core.registry import find

SMALL = [case for case in CASES["select_tokens"] if not case.large]


def expected(arguments: tuple[Any, ...]) -> list[list[int]]:
    """The tokens of every query: best score first, among equals the earlier."""
    query, weights, keys, q_scale, k_scale, table, ends, lens, top_k, _ = arguments
    page = keys.shape[1]
    rows = []
    for t in range(query.shape[0]):
        request = next((r for r, end in enumerate(ends.tolist()) if t < end), None)
        if request is None:
            rows.append([])
            continue
        seen = max(0, int(lens[request]) - (int(ends[request]) - 1 - t))
        scores = []
        for s in range(seen):
            block, offset = int(table[request, s // page]), s % page
            key = keys[block].double()[offset]
            score = 0.0
            for h in range(query.shape[1]):
                dot = max(0.0, float(query[t, h].double() @ key))
                scale = 1.0 if q_scale is None else float(q_scale[t, h])
                score += float(weights[t, h]) * scale * dot
            scores.append(score if k_scale is None else score * float(k_scale[block, offset]))
        order = sorted(range(seen), key=lambda s: (-scores[s], s))
        rows.append(sorted(order[:top_k]))
    return rows


def check(got: torch.Tensor, arguments: tuple[Any, ...]) -> None:
    assert got.dtype == torch.int32
    assert got.shape == (arguments[0].shape[0], arguments[8])
    for row, wanted in zip(got.tolist(), expected(arguments), strict=True):
        assert row[len(wanted) :] == [-1] * (len(row) - len(wanted))
        assert sorted(row[: len(wanted)]) == wanted


@pytest.mark.oracle("ascend_attention::select_tokens", "sorting the scores of loops in Python")
@pytest.mark.parametrize("case", SMALL, ids=str)
def test_selection_equals_sorting(case: Case) -> None:
    arguments = case.arguments()
    check(torch.ops.ascend_attention.select_tokens(*arguments), arguments)
    check(reference.select_tokens(*arguments), arguments)


@pytest.mark.parametrize("case", [c for c in SMALL if c.arguments("meta")[4] is None], ids=str)
def test_the_way_of_many_queries_equals_sorting(
    case: Case, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(per_request, "_TILE_ELEMENTS", 200)
    query, weights, keys, _, _, table, ends, lens, top_k, _ = case.arguments()
    got = per_request.select_tokens(query, weights, keys, table, ends, lens, top_k)
    check(got, case.arguments())


def test_tiles_of_scores_do_not_matter(monkeypatch: pytest.MonkeyPatch) -> None:
    arguments = next(case for case in SMALL if case.name == "ragged").arguments()
    monkeypatch.setattr(reference, "_TILE_ELEMENTS", 1)
    check(reference.select_tokens(*arguments), arguments)


@pytest.mark.parametrize("dtype", [torch.int8, torch.float8_e4m3fn], ids=str)
def test_queries_are_quantised_like_their_keys(dtype: torch.dtype) -> None:
    case = next(case for case in SMALL if case.name == "ragged")
    query, weights, keys, _, _, table, ends, lens, top_k, most = case.arguments()
    rows = torch.nan_to_num(keys).to(dtype)
    scales = torch.rand(keys.shape[:2]) + 0.5
    # Whole numbers whose largest is 127 or 448 are their own quantised form.
    query = query.clone()
    query[..., 0] = 127 if dtype == torch.int8 else 448
    got = select_tokens(
        query, weights, rows, table, ends, lens, top_k, key_scale=scales, most_tokens=most
    )
    exact = torch.ones(query.shape[:2])
    check(
        got,
        (query, weights, rows, exact, scales, table, ends, lens, top_k, most),
    )


def test_owners_skip_requests_without_queries_and_see_none_in_padding() -> None:
    ends, lens = (torch.tensor(x, dtype=torch.int32) for x in ([0, 2, 2, 3], [9, 5, 7, 0]))
    request, seen = owners(ends, lens, 5)
    assert request.tolist() == [1, 1, 3, 0, 0]
    assert seen.tolist() == [4, 5, 0, 0, 0]
    none = torch.zeros(0, dtype=torch.int32)
    assert [one.tolist() for one in owners(none, none, 2)] == [[0, 0], [0, 0]]


def test_the_selection_asks_the_host_for_nothing() -> None:
    operator = find("ascend_attention::select_tokens")
    for case in cases_of(operator):
        if not case.large:
            arguments = case.make(Inputs("meta"))
            got, fake = operator.reference(*arguments), operator.fake(*arguments)
            assert (got.device.type, got.shape, got.dtype) == ("meta", fake.shape, fake.dtype)


def _arguments(**changed: Any) -> dict[str, Any]:
    plain = {
        "query": torch.randn(2, 3, 8),
        "head_weights": torch.randn(2, 3),
        "key_cache": torch.randn(4, 5, 8),
        "block_table": torch.zeros(1, 2, dtype=torch.int32),
        "query_ends": torch.tensor([2], dtype=torch.int32),
        "seq_lens": torch.tensor([7], dtype=torch.int32),
        "top_k": 3,
    }
    return plain | changed


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"top_k": 0}, "top_k=0"),
        ({"most_tokens": 11}, r"most_tokens=11.*0 to 10"),
        ({"query": torch.randn(2, 3, 7)}, "query of shape"),
        ({"query": torch.randn(2, 3, 8).half()}, "query of torch.float16"),
        ({"head_weights": torch.randn(2, 4)}, "head_weights of shape"),
        ({"query_ends": torch.tensor([1, 2], dtype=torch.int32)}, "query_ends of shape"),
        ({"seq_lens": torch.tensor([7])}, "seq_lens of torch.int64"),
        ({"block_table": torch.zeros(1, 2, dtype=torch.int64)}, "block_table of torch.int64"),
        ({"key_scale": torch.ones(4, 5)}, "with scales"),
        ({"key_cache": torch.ones(4, 5, 8, dtype=torch.int8)}, "without scales"),
    ],
)
def test_bad_input_is_refused(changed: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidInputError, match=message):
        select_tokens(**_arguments(**changed))


def _limits(**changed: Any) -> tuple[Any, ...]:
    sizes = {"heads": 64, "width": 128, "page": 128, "dtype": torch.bfloat16, "top_k": 2048}
    sizes |= changed
    scaled = sizes["dtype"] in (torch.int8, torch.float8_e4m3fn)

    def empty(*shape: int, dtype: torch.dtype) -> torch.Tensor:
        return torch.empty(shape, dtype=dtype, device="meta")

    keys = empty(4, sizes["page"], sizes["width"] + sizes.get("gap", 0), dtype=sizes["dtype"])
    return (
        empty(sizes.get("tokens", 2), sizes["heads"], sizes["width"], dtype=sizes["dtype"]),
        empty(sizes.get("tokens", 2), sizes["heads"], dtype=torch.float32),
        keys[..., : sizes["width"]],
        empty(2, sizes["heads"], dtype=torch.float32) if scaled else None,
        empty(4, sizes["page"], dtype=sizes.get("scale", torch.float16)) if scaled else None,
        empty(1, 16, dtype=torch.int32),
        empty(1, dtype=torch.int32),
        empty(1, dtype=torch.int32),
        sizes["top_k"],
        2048,
    )


INT8, FP8 = {"dtype": torch.int8}, {"dtype": torch.float8_e4m3fn}


@pytest.mark.parametrize(
    ("family", "changed", "reason"),
    [
        ("A2", {}, ""),
        ("A5", {}, ""),
        ("A3", INT8, ""),
        ("A5", FP8 | {"scale": torch.float32}, ""),
        ("A2", INT8, "documented for A3 and A5"),
        ("A5", INT8, "keys of torch.int8"),
        ("A3", INT8 | {"scale": torch.float32}, "scales of torch.float32"),
        ("A3", {"dtype": torch.float32}, "keys of torch.float32"),
        ("A3", {"heads": 65}, "65 heads"),
        ("A3", {"width": 64}, "heads of 64"),
        ("A3", {"page": 8}, "blocks of 8 rows"),
        ("A3", {"page": 2048}, "blocks of 2048 rows"),
        ("A3", {"top_k": 2049}, "top_k=2049"),
        ("A3", {"top_k": 4096}, ""),
        ("A3", {"gap": 8}, "with gaps"),
        ("A3", {"tokens": 0}, "no queries"),
    ],
)
def test_limits_of_torch_npu(family: str, changed: dict[str, Any], reason: str) -> None:
    operator = find("ascend_attention::select_tokens")
    support = operator.supports("torch_npu", facts_of(family), *_limits(**changed))
    assert reason in support.reason
    assert bool(support) == (not reason)


def test_public_names() -> None:
    assert token_indexer.__all__ == ["owners", "select_tokens"]
