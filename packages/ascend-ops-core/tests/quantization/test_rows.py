"""Quantisation of rows against arithmetic in Python, and its rules and refusals."""

from __future__ import annotations

import math

import pytest
import torch
from ascend_ops_core.devices import facts_of
from ascend_ops_core.errors import InvalidInputError
from ascend_ops_core.ops.quantization import (
    dynamic_quantize,
    per_token_head_quantize,
    static_quantize,
)
from ascend_ops_core.ops.quantization.rows import npu

INT8, FP8 = torch.int8, torch.float8_e4m3fn
DTYPES = (torch.float32, torch.bfloat16, torch.float16)

E4M3 = sorted(
    {
        math.ldexp(8 + m, e - 10) if e else math.ldexp(m, -9)
        for e in range(16)
        for m in range(8)
        if (e, m) != (15, 7)
    }
)
"""Every magnitude of the format, from its definition; the index is the code."""


def nearest(value: float, dtype: torch.dtype) -> float:
    """Round half to even by search."""
    if dtype == INT8:
        return max(-128, min(127, round(value)))
    size = min(abs(value), 448.0)
    low, high = min(
        ((abs(size - one), code % 2, one) for code, one in enumerate(E4M3)), key=lambda t: t[:2]
    )[::2]
    del low
    return math.copysign(high, value)


@pytest.mark.oracle("ascend_ops_core::dynamic_quantize", "brute force over every code point")
@pytest.mark.parametrize("target", [INT8, FP8], ids=str)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("tokens", [0, 1, 3, 17])
def test_dynamic_equals_brute_force(tokens: int, dtype: torch.dtype, target: torch.dtype) -> None:
    torch.manual_seed(tokens)
    x = (3 * torch.randn(tokens, 37)).to(dtype)
    q, scale = dynamic_quantize(x, target)
    largest = torch.tensor(127.0 if target == INT8 else 448.0)
    assert q.dtype == target
    assert scale.dtype == torch.float32
    for row, got, s in zip(x.float(), q.float(), scale, strict=True):
        assert s == row.abs().max() / largest
        assert got.tolist() == [nearest(float(v / s), target) for v in row]


@pytest.mark.oracle("ascend_ops_core::static_quantize", "brute force over every code point")
@pytest.mark.parametrize("target", [INT8, FP8], ids=str)
@pytest.mark.parametrize("per_channel", [True, False])
def test_static_equals_brute_force(target: torch.dtype, per_channel: bool) -> None:
    torch.manual_seed(1)
    x = 9 * torch.randn(5, 33)
    scale = 0.01 + torch.rand(33 if per_channel else 1)
    got = static_quantize(x, scale, dtype=target)
    wanted = [nearest(float(v), target) for v in (x / scale).flatten()]
    assert got.float().flatten().tolist() == wanted


def test_static_equals_torch_quantize_per_tensor() -> None:
    x = torch.randn(7, 65) * 5
    wanted = torch.quantize_per_tensor(x, 0.0625, -3, torch.qint8).int_repr()
    got = static_quantize(x, torch.tensor([0.0625]), torch.tensor([-3], dtype=torch.int32))
    assert torch.equal(got, wanted)


def test_halves_go_to_the_even_neighbour_and_the_rest_saturates() -> None:
    x = torch.tensor([[0.5, 1.5, 2.5, -0.5, -1.5, 126.5, 300.0, -300.0, math.inf, math.nan]])
    one = torch.ones(1)
    assert static_quantize(x, one).tolist() == [[0, 2, 2, 0, -2, 126, 127, -128, 127, 0]]
    fp8 = static_quantize(
        torch.tensor([17.0, 19.0, 464.0, 1e9, -math.inf, math.nan]), one, dtype=FP8
    )
    assert fp8.float().tolist()[:5] == [16.0, 20.0, 448.0, 448.0, -448.0]
    assert fp8.float()[5].isnan()


@pytest.mark.parametrize("target", [INT8, FP8], ids=str)
def test_zero_rows_and_rows_that_are_not_finite(target: torch.dtype) -> None:
    x = torch.ones(5, 8)
    x[0] = 0.0
    x[1] = 1e-40
    x[2, 3] = math.nan
    x[3, 3] = -math.inf
    q, scale = dynamic_quantize(x, target)
    assert scale[0] == 0
    assert scale[2:4].isinf().all()
    assert (q[:4].float() == 0).all()
    assert (q[2:4].float() * scale[2:4, None]).isnan().all()
    assert (q[4].float() == (127 if target == INT8 else 448)).all()


def test_smooth_factors_come_first() -> None:
    x, smooth = torch.randn(3, 8), torch.rand(8)
    for got, wanted in zip(
        dynamic_quantize(x, smooth=smooth), dynamic_quantize(x * smooth), strict=True
    ):
        assert torch.equal(got, wanted)


def test_heads_of_a_packed_projection() -> None:
    packed = torch.randn(5, 6, 16)
    q, scale = per_token_head_quantize(packed[:, 2:4])
    wanted, wanted_scale = dynamic_quantize(packed[:, 2:4].contiguous().view(-1, 16))
    assert torch.equal(q.view(-1, 16), wanted)
    assert torch.equal(scale.flatten(), wanted_scale)
    assert scale.shape == (5, 2)


@pytest.mark.parametrize(
    ("call", "limit"),
    [
        (lambda: dynamic_quantize(torch.ones(2, 4, dtype=torch.int32)), "float32, bfloat16"),
        (lambda: dynamic_quantize(torch.tensor(1.0)), "last axis"),
        (lambda: dynamic_quantize(torch.ones(2, 0)), "at least 1 column"),
        (lambda: dynamic_quantize(torch.ones(2, 4), torch.uint8), "int8 or torch.float8"),
        (lambda: dynamic_quantize(torch.ones(2, 4), smooth=torch.ones(3)), r"\[4\]"),
        (lambda: per_token_head_quantize(torch.ones(2, 4)), "tokens, heads, channels"),
        (lambda: static_quantize(torch.ones(2, 4), torch.ones(2)), r"\[1\] or \[4\]"),
        (
            lambda: static_quantize(torch.ones(2, 4), torch.ones(4), torch.ones(1)),
            r"it is \[4\]",
        ),
        (
            lambda: static_quantize(torch.ones(2, 4), torch.ones(1), torch.ones(1), FP8),
            "symmetric",
        ),
    ],
)
def test_refusals(call: object, limit: str) -> None:
    with pytest.raises(InvalidInputError, match=limit):
        call()  # type: ignore[operator]


def meta(*shape: int, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
    return torch.empty(shape, dtype=dtype, device="meta")


@pytest.mark.parametrize(
    ("family", "arguments", "reason"),
    [
        ("A2", (meta(2, 8), None, INT8), ""),
        ("A5", (meta(2, 8), None, INT8), "A2, A3, not A5"),
        ("A2", (meta(2, 8), None, FP8), "gives int8"),
        ("A3", (meta(2, 8, dtype=torch.float32), None, INT8), "float16, bfloat16"),
        ("A2", (meta(8), None, INT8), "2 or more"),
        ("A2", (meta(2, 8), meta(8, dtype=torch.float32), INT8), "one dtype"),
        ("A2", (meta(0, 8), None, INT8), "empty"),
    ],
)
def test_limits_of_npu_dynamic_quant(family: str, arguments: tuple, reason: str) -> None:  # type: ignore[type-arg]
    support = npu.supports_dynamic_quantize(facts_of(family), *arguments)
    assert (reason in support.reason) if reason else bool(support)


@pytest.mark.parametrize(
    ("family", "arguments", "reason"),
    [
        ("A2", (meta(2, 8), meta(8), None, INT8), ""),
        ("A3", (meta(2, 8), meta(8), None, INT8), "A2, not A3"),
        ("A2", (meta(2, 8), meta(8), None, FP8), "integers"),
        ("A2", (meta(2, 8), meta(8, dtype=torch.float16), None, INT8), "float32, bfloat16"),
        ("A2", (meta(2, 8), meta(8), meta(8, dtype=torch.float32), INT8), "int8, int32"),
        ("A2", (meta(0, 8), meta(8), None, INT8), "empty"),
    ],
)
def test_limits_of_npu_quantize(family: str, arguments: tuple, reason: str) -> None:  # type: ignore[type-arg]
    support = npu.supports_static_quantize(facts_of(family), *arguments)
    assert (reason in support.reason) if reason else bool(support)


@pytest.mark.parametrize("family", ["A2", "A3"])
def test_float8_is_refused_where_the_device_has_none(family: str) -> None:
    facts = facts_of(family)
    assert "float8" in npu.supports_dynamic_quantize_triton(facts, meta(2, 8), None, FP8).reason
    assert (
        "float8"
        in npu.supports_static_quantize_triton(facts, meta(2, 8), meta(8), None, FP8).reason
    )
    assert npu.supports_dynamic_quantize_triton(facts_of("A5"), meta(2, 8), None, FP8)
