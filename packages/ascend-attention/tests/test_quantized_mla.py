"""Quantised rows of MLA and attention over them against loops in Python."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from ascend_attention.ops import quantized_mla as family
from ascend_attention.ops.quantized_mla import quantize_mla_rows, quantized_sparse_mla, row_bytes
from ascend_attention.ops.quantized_mla.cases import CASES
from ascend_attention.ops.quantized_mla.layout import rotated_part, scales_part
from ascend_attention.ops.quantized_mla_states import quantized_mla_states
from ascend_attention.ops.quantized_mla_states.cases import CASES as STATES
from ascend_ops_core import InvalidInputError
from ascend_ops_core.cases import Case, Inputs
from ascend_ops_core.devices import facts_of
from ascend_ops_core.registry import find
from ascend_ops_core.testing import assert_close

ROWS = [case for case in CASES["quantize_mla_rows"] if not case.large]
ATTENDED = [case for case in CASES["quantized_sparse_mla"] if not case.large]


@pytest.mark.oracle("ascend_attention::quantize_mla_rows", "groups one by one")
@pytest.mark.parametrize("case", ROWS, ids=str)
def test_rows_equal_loops(case: Case) -> None:
    cache, latent, rope, block, offset = case.arguments()
    width, turned = latent.shape[1], rope.shape[1]
    before = cache.clone()
    quantize_mla_rows(cache, latent, rope, block, offset)
    for n in range(latent.shape[0]):
        if block[n] < 0:
            continue
        at = int(block[n]), int(offset[n])
        assert torch.equal(rotated_part(cache, width, turned)[at], rope[n].to(torch.bfloat16))
        for group, values in enumerate(latent[n].float().split(128)):
            scale = values.abs().max() / 127
            assert scales_part(cache, width, turned)[at][group] == scale
            wanted = [round(float(v / scale)) for v in values]
            assert cache[at][128 * group : 128 * (group + 1)].tolist() == wanted
        before[at] = cache[at]
    assert torch.equal(cache, before)


def test_what_is_not_finite_stays_so_and_zeros_stay_zeros() -> None:
    cache = torch.zeros(1, 4, row_bytes(256, 2), dtype=torch.int8)
    latent = torch.ones(3, 256)
    latent[0, 130], latent[1, :128], latent[2, 5] = float("nan"), 0, float("inf")
    place = torch.arange(3)
    quantize_mla_rows(cache, latent, torch.zeros(3, 2), torch.zeros(3, dtype=torch.int64), place)
    scales = scales_part(cache, 256, 2)[0]
    assert scales[0].tolist() == [1 / torch.tensor(127.0), float("inf")]
    assert scales[1, 0] == 0
    assert scales[2, 0] == float("inf")
    assert not cache[0, 0, 128:256].any()


@pytest.mark.oracle("ascend_attention::quantized_sparse_mla", "loops over tokens and heads")
@pytest.mark.parametrize("case", ATTENDED, ids=str)
def test_attention_equals_loops(case: Case) -> None:
    arguments = case.arguments()
    latent, rope, cache, selected, table, ends, lens, scale = arguments
    width, turned, page = latent.shape[2], rope.shape[2], cache.shape[1]
    wanted = torch.zeros(latent.shape, dtype=torch.float64)
    for t in range(latent.shape[0]):
        request = next((r for r, end in enumerate(ends.tolist()) if t < end), None)
        tokens = [s for s in selected[t].tolist() if s >= 0]
        if request is None or int(lens[request]) < 1 or not tokens:
            continue
        rows, turns = [], []
        for s in tokens:
            at = int(table[request, s // page]), s % page
            factor = scales_part(cache, width, turned)[at].repeat_interleave(128)
            row = (cache[at][:width].float() * factor).to(latent.dtype)
            rows.append(row.double())
            turns.append(rotated_part(cache, width, turned)[at].double())
        c, r = torch.stack(rows), torch.stack(turns)
        for h in range(latent.shape[1]):
            logits = (c @ latent[t, h].double() + r @ rope[t, h].double()) * scale
            wanted[t, h] = logits.softmax(0) @ c
    assert_close(quantized_sparse_mla(*arguments), wanted, scale=case.scale)


@pytest.mark.oracle("ascend_attention::quantized_mla_states", "loops over tokens and heads")
@pytest.mark.parametrize(
    "case", [one for one in STATES["quantized_mla_states"] if not one.large], ids=str
)
def test_states_equal_loops(case: Case) -> None:
    arguments = case.arguments()
    latent, rope, cache, selected, table, request, scale = arguments
    width, turned, page = latent.shape[2], rope.shape[2], cache.shape[1]
    out, lse = quantized_mla_states(*arguments)
    assert (out.dtype, lse.dtype) == (latent.dtype, torch.float32)
    for t in range(latent.shape[0]):
        rows, turns = [], []
        for s in selected[t].tolist():
            if s < 0:
                continue
            at = int(table[int(request[t]), s // page]), s % page
            factor = scales_part(cache, width, turned)[at].repeat_interleave(128)
            rows.append((cache[at][:width].float() * factor).to(latent.dtype).double())
            turns.append(rotated_part(cache, width, turned)[at].double())
        if not rows:
            assert not out[t].any()
            assert lse[t].eq(float("-inf")).all()
            continue
        c, r = torch.stack(rows), torch.stack(turns)
        for h in range(latent.shape[1]):
            logits = (c @ latent[t, h].double() + r @ rope[t, h].double()) * scale
            assert_close(out[t, h], logits.softmax(0) @ c, scale=case.scale)
            assert_close(lse[t, h], logits.logsumexp(0), scale=4)


def test_they_ask_the_host_for_nothing() -> None:
    operator = find("ascend_attention::quantized_sparse_mla")
    for case in ATTENDED:
        arguments = case.make(Inputs("meta"))
        got, fake = operator.reference(*arguments), operator.fake(*arguments)
        assert (got.device.type, got.shape, got.dtype) == ("meta", fake.shape, fake.dtype)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"cache": torch.zeros(2, 3, 149, dtype=torch.int8)}, "cache of shape"),
        ({"cache": torch.zeros(2, 3, 148)}, "cache of torch.float32"),
        ({"cache": torch.zeros(2, 3, 296, dtype=torch.int8)[..., ::2]}, "without gaps"),
        ({"cache": torch.zeros(2, 446, dtype=torch.int8)[:, 2:].unflatten(1, (3, 148))}, "from"),
        ({"latent": torch.zeros(2, 64)}, "a quantised row of 64"),
        ({"rope": torch.zeros(2, 9)}, r"128 \+ 9"),
        ({"rope": torch.zeros(1, 8)}, "rope of shape"),
        ({"rope": torch.zeros(2, 8).half()}, "rope of torch.float16"),
        ({"block": torch.zeros(1, dtype=torch.int64)}, "block of shape"),
        ({"offset": torch.zeros(2, dtype=torch.int32)}, "offset of torch.int32"),
    ],
)
def test_bad_rows_are_refused_before_anything_is_written(
    changed: dict[str, Any], message: str
) -> None:
    place = torch.zeros(2, dtype=torch.int64)
    arguments = {
        "cache": torch.zeros(2, 3, row_bytes(128, 8), dtype=torch.int8),
        "latent": torch.ones(2, 128),
        "rope": torch.ones(2, 8),
        "block": place,
        "offset": place,
    } | changed
    with pytest.raises(InvalidInputError, match=message):
        quantize_mla_rows(**arguments)
    assert not arguments["cache"].any()


@pytest.mark.parametrize(
    ("implementation", "dtype", "heads", "latent", "page", "reason"),
    [
        ("torch_npu", torch.bfloat16, 128, 512, 128, ""),
        ("torch_npu", torch.float32, 128, 512, 128, "queries of torch.float32"),
        ("torch_npu", torch.bfloat16, 24, 512, 128, "24 heads"),
        ("torch_npu", torch.bfloat16, 16, 256, 128, "rows of 256 + 64"),
        ("torch_npu", torch.bfloat16, 16, 512, 8, "blocks of 8 rows"),
        ("triton", torch.float32, 24, 256, 8, ""),
        ("triton", torch.float32, 24, 640, 8, "latents of 640"),
    ],
)
def test_limits(
    implementation: str, dtype: torch.dtype, heads: int, latent: int, page: int, reason: str
) -> None:
    def empty(*shape: int, dtype: torch.dtype = dtype) -> torch.Tensor:
        return torch.empty(shape, dtype=dtype, device="meta")

    arguments = (
        empty(2, heads, latent),
        empty(2, heads, 64),
        empty(4, page, row_bytes(latent, 64), dtype=torch.int8),
        empty(2, 2048, dtype=torch.int32),
        empty(1, 16, dtype=torch.int32),
        empty(1, dtype=torch.int32),
        empty(1, dtype=torch.int32),
        1.0,
    )
    operator = find("ascend_attention::quantized_sparse_mla")
    support = operator.supports(implementation, facts_of("A3"), *arguments)
    assert reason in support.reason
    assert bool(support) == (not reason)


def test_public_names_and_sizes() -> None:
    assert family.__all__ == ["GROUP", "quantize_mla_rows", "quantized_sparse_mla", "row_bytes"]
    assert row_bytes(512, 64) == 656
