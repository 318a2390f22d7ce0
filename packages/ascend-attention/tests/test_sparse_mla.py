"""Absorbed attention over selected tokens against loops in double precision."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from ascend_attention.ops import sparse_mla as family
from ascend_attention.ops.sparse_mla import reference, sparse_mla
from ascend_attention.ops.sparse_mla.cases import CASES
from ascend_ops_core import InvalidInputError
from ascend_ops_core.cases import Case, Inputs
from ascend_ops_core.devices import facts_of
from ascend_ops_core.registry import find
from ascend_ops_core.testing import assert_close

SMALL = [case for case in CASES["sparse_mla"] if not case.large]


def expected(arguments: tuple[Any, ...]) -> torch.Tensor:
    latent, rope, latents, ropes, selected, table, ends, lens, scale = arguments
    page = latents.shape[1]
    out = torch.zeros(latent.shape, dtype=torch.float64)
    for t in range(latent.shape[0]):
        request = next((r for r, end in enumerate(ends.tolist()) if t < end), None)
        if request is None or int(lens[request]) < 1:
            continue
        tokens = [s for s in selected[t].tolist() if s >= 0]
        if not tokens:
            continue
        places = [(int(table[request, s // page]), s % page) for s in tokens]
        c = torch.stack([latents[p] for p in places]).double()
        r = torch.stack([ropes[p] for p in places]).double()
        for h in range(latent.shape[1]):
            logits = (c @ latent[t, h].double() + r @ rope[t, h].double()) * scale
            out[t, h] = logits.softmax(0) @ c
    return out


@pytest.mark.oracle("ascend_attention::sparse_mla", "loops over tokens and heads, float64")
@pytest.mark.parametrize("case", SMALL, ids=str)
def test_attention_equals_loops(case: Case) -> None:
    arguments = case.arguments()
    wanted = expected(arguments)
    assert_close(sparse_mla(*arguments), wanted, scale=case.scale)
    assert_close(reference.sparse_mla(*arguments), wanted, scale=case.scale)


def test_tiles_of_queries_do_not_matter(monkeypatch: pytest.MonkeyPatch) -> None:
    arguments = next(case for case in SMALL if case.name == "odd").arguments()
    monkeypatch.setattr(reference, "_TILE_ELEMENTS", 1)
    assert_close(reference.sparse_mla(*arguments), expected(arguments))


def test_the_order_of_selected_tokens_does_not_matter() -> None:
    *arguments, scale = next(case for case in SMALL if case.name == "one").arguments()
    assert scale > 0
    arguments = list(next(case for case in SMALL if case.name == "together").arguments())
    before = sparse_mla(*arguments)
    arguments[4] = arguments[4].flip(1).contiguous()
    assert_close(sparse_mla(*arguments), before)


def test_it_asks_the_host_for_nothing() -> None:
    operator = find("ascend_attention::sparse_mla")
    for case in SMALL:
        arguments = case.make(Inputs("meta"))
        got, fake = operator.reference(*arguments), operator.fake(*arguments)
        assert (got.device.type, got.shape, got.dtype) == ("meta", fake.shape, fake.dtype)


@pytest.mark.parametrize(
    ("place", "bad", "message"),
    [
        (0, torch.randn(2, 2, 15), "latent_cache of shape"),
        (1, torch.randn(2, 3, 8), "query_rope of shape"),
        (1, torch.randn(2, 2, 8).half(), "query_rope of torch.float16"),
        (3, torch.randn(1, 4, 8), "rope_cache of shape"),
        (4, torch.zeros(2, 3, dtype=torch.int64), "selected of torch.int64"),
        (4, torch.zeros(1, 3, dtype=torch.int32), "selected of shape"),
        (5, torch.zeros(2, dtype=torch.int32), "block_table of shape"),
        (6, torch.zeros(2, dtype=torch.int32), "query_ends of shape"),
        (7, torch.zeros(1), "seq_lens of torch.float32"),
    ],
)
def test_bad_input_is_refused(place: int, bad: torch.Tensor, message: str) -> None:
    one = torch.ones(1, dtype=torch.int32)
    arguments: list[Any] = [
        torch.randn(2, 2, 16),
        torch.randn(2, 2, 8),
        torch.randn(3, 4, 16),
        torch.randn(3, 4, 8),
        torch.zeros(2, 3, dtype=torch.int32),
        torch.zeros(1, 2, dtype=torch.int32),
        2 * one,
        5 * one,
        1.0,
    ]
    arguments[place] = bad
    with pytest.raises(InvalidInputError, match=message):
        sparse_mla(*arguments)


def _limits(**changed: Any) -> tuple[Any, ...]:
    sizes = {"heads": 128, "latent": 512, "rope": 64, "page": 128, "dtype": torch.bfloat16}
    sizes |= changed

    def empty(*shape: int, dtype: torch.dtype = sizes["dtype"]) -> torch.Tensor:
        return torch.empty(shape, dtype=dtype, device="meta")

    gap = sizes.get("gap", 0)
    return (
        empty(sizes.get("tokens", 2), sizes["heads"], sizes["latent"]),
        empty(sizes.get("tokens", 2), sizes["heads"], sizes["rope"]),
        empty(4, sizes["page"], sizes["latent"] + gap)[..., : sizes["latent"]],
        empty(4, sizes["page"], sizes["rope"]),
        empty(sizes.get("tokens", 2), 2048, dtype=torch.int32),
        empty(1, 16, dtype=torch.int32),
        empty(1, dtype=torch.int32),
        empty(1, dtype=torch.int32),
        1.0,
    )


@pytest.mark.parametrize(
    ("implementation", "changed", "reason"),
    [
        ("torch_npu", {}, ""),
        ("torch_npu", {"heads": 16}, ""),
        ("torch_npu", {"dtype": torch.float32}, "queries of torch.float32"),
        ("torch_npu", {"heads": 24}, "24 heads"),
        ("torch_npu", {"heads": 256}, "256 heads"),
        ("torch_npu", {"latent": 256}, "rows of 256 + 64"),
        ("torch_npu", {"page": 8}, "blocks of 8 rows"),
        ("torch_npu", {"gap": 64}, "with gaps"),
        ("torch_npu", {"tokens": 0}, "no queries"),
        ("triton", {"heads": 24, "gap": 64, "dtype": torch.float32}, ""),
        ("triton", {"latent": 513}, "latents of 513"),
        ("triton", {"rope": 129}, "rotated parts of 129"),
    ],
)
def test_limits(implementation: str, changed: dict[str, Any], reason: str) -> None:
    operator = find("ascend_attention::sparse_mla")
    support = operator.supports(implementation, facts_of("A3"), *_limits(**changed))
    assert reason in support.reason
    assert bool(support) == (not reason)


def test_public_names() -> None:
    assert family.__all__ == ["sparse_mla"]
