"""The other activations, and the limits of their NPU implementations."""

from __future__ import annotations

import math

import pytest
import torch
from ascend_ops_core import InvalidInputError
from ascend_ops_core.devices import facts_of
from ascend_ops_core.ops.activation import (
    npu,
    quick_gelu,
    silu_and_mul,
    silu_and_mul_with_clamp,
    situ_and_mul,
    swiglu_oai_and_mul,
    swiglustep_and_mul,
)
from ascend_ops_core.testing import assert_close

DTYPES = (torch.float32, torch.bfloat16, torch.float16)


def sigmoid(x: float) -> float:
    return 1 / (1 + math.exp(-x))


@pytest.mark.oracle("ascend_ops_core::silu_and_mul", "transformers' LlamaMLP activation")
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("tokens", [0, 1, 17])
def test_silu_and_mul_equals_transformers(tokens: int, dtype: torch.dtype) -> None:
    from transformers.activations import ACT2FN

    x = (2 * torch.randn(tokens, 22)).to(dtype)
    wide = x.float()
    got = silu_and_mul(x)
    assert got.dtype == dtype
    assert_close(got, ACT2FN["silu"](wide[:, :11]) * wide[:, 11:], scale=2)
    assert torch.equal(got, silu_and_mul_with_clamp(x, None))


@pytest.mark.oracle("ascend_ops_core::silu_and_mul_with_clamp", "scalar formula in the test")
@pytest.mark.parametrize("gate", [-50.0, 50.0])
@pytest.mark.parametrize("up", [-50.0, 50.0])
def test_the_limit_of_deepseek(gate: float, up: float) -> None:
    g, u = min(gate, 10.0), max(-10.0, min(up, 10.0))
    got = silu_and_mul_with_clamp(torch.tensor([[gate, up]]), 10.0)
    assert_close(got, torch.tensor([[g * sigmoid(g) * u]]), scale=100)


@pytest.mark.oracle("ascend_ops_core::swiglu_oai_and_mul", "transformers' GptOssExperts")
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("tokens", [0, 1, 17])
def test_swiglu_oai_equals_transformers(tokens: int, dtype: torch.dtype) -> None:
    from transformers import GptOssConfig
    from transformers.models.gpt_oss.modeling_gpt_oss import GptOssExperts

    config = GptOssConfig(hidden_size=4, intermediate_size=11, num_local_experts=1)
    x = (6 * torch.randn(tokens, 22)).to(dtype)
    expected = GptOssExperts(config)._apply_gate(x.float())
    assert_close(swiglu_oai_and_mul(x), expected, scale=40)
    halves = torch.cat((x[:, 0::2], x[:, 1::2]), -1)
    assert_close(swiglu_oai_and_mul(halves, interleaved=False), expected, scale=40)


@pytest.mark.oracle("ascend_ops_core::swiglustep_and_mul", "scalar formula in the test")
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_swiglustep_limits_after_the_activation(dtype: torch.dtype) -> None:
    values = [(-50.0, 50.0), (50.0, -50.0), (1.0, 3.0), (8.0, 8.0), (-3.0, -8.0)]
    x = torch.tensor([[g, u] for g, u in values]).to(dtype)
    expected = [[min(g * sigmoid(g), 7.0) * max(-7.0, min(u, 7.0))] for g, u in values]
    assert_close(swiglustep_and_mul(x, 7.0), torch.tensor(expected), scale=49)


@pytest.mark.oracle("ascend_ops_core::situ_and_mul", "scalar formula in the test")
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("linear_beta", [None, 0.0, 3.0])
def test_situ_equals_the_formula(linear_beta: float | None, dtype: torch.dtype) -> None:
    values = [(g, u) for g in (-50.0, -1.5, 0.0, 1e-3, 0.7, 50.0) for u in (-50.0, -1e-3, 2.0)]
    x = torch.tensor(values).to(dtype)
    expected = []
    for g, u in x.double().tolist():
        bounded = 3 * math.tanh(u / 3) if linear_beta else u
        expected.append([2 * math.tanh(g / 2) * sigmoid(g) * bounded])
    got = situ_and_mul(x, 2.0, linear_beta)
    assert got.dtype == dtype
    assert_close(got, torch.tensor(expected), scale=2)
    if linear_beta:
        assert got.abs().max() <= 6


def test_situ_keeps_the_digits_of_small_channels() -> None:
    # A bound minus almost itself would leave none of them.
    x = torch.tensor([[1.0, 1e-5], [1e-5, 1.0]])
    got = situ_and_mul(x, 30.0, 30.0).flatten().tolist()
    expected = [30 * math.tanh(1 / 30) * sigmoid(1) * 1e-5, 0.5e-5 * 30 * math.tanh(1 / 30)]
    assert got == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("bounds", [(0.0, None), (-1.0, 1.0), (math.nan, None), (1.0, -2.0)])
def test_bounds_of_situ_are_positive(bounds: tuple[float, float | None]) -> None:
    with pytest.raises(InvalidInputError, match=r"situ with beta=.*positive.*activation_situ_beta"):
        situ_and_mul(torch.zeros(1, 2), *bounds)


@pytest.mark.oracle("ascend_ops_core::quick_gelu", "transformers' QuickGELUActivation")
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", [(0, 3), (1,), (5, 7, 9)])
def test_quick_gelu_equals_transformers(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    from transformers.activations import ACT2FN

    x = (3 * torch.randn(shape)).to(dtype)
    assert_close(quick_gelu(x), ACT2FN["quick_gelu"](x.float()))


def test_nan_stays_in_its_place() -> None:
    x = torch.tensor([[float("nan"), 1.0, 1.0, 1.0]])
    for call in (
        silu_and_mul,
        lambda v: silu_and_mul_with_clamp(v, 1.0),
        lambda v: swiglustep_and_mul(v, 1.0),
        lambda v: situ_and_mul(v, 1.0, 1.0),
        lambda v: swiglu_oai_and_mul(v, interleaved=False),
    ):
        assert call(x).isnan().tolist() == [[True, False]]


@pytest.mark.parametrize("limit", [0.0, -1.0, math.nan])
def test_a_limit_is_positive(limit: float) -> None:
    for call in (swiglustep_and_mul, lambda x, one: swiglu_oai_and_mul(x, limit=one)):
        with pytest.raises(InvalidInputError, match=rf"limit={limit}.*positive"):
            call(torch.zeros(1, 2), limit)
    for call in (silu_and_mul, swiglu_oai_and_mul):
        with pytest.raises(InvalidInputError, match=r"width 3.*equal halves"):
            call(torch.zeros(1, 3))


def test_limits_of_torch_npu() -> None:
    a2, a5 = facts_of("A2"), facts_of("A5")
    x = torch.zeros(3, 8)
    oai = (1.702, 7.0, 1.0, True)
    assert npu.supports_silu_and_mul(a2, x)
    assert npu.supports_silu_and_mul_with_clamp(a2, x, 10.0)
    assert npu.supports_silu_and_mul_with_clamp(a5, x, None)
    assert npu.supports_swiglu_oai_and_mul(a2, x, *oai)
    assert npu.supports_quick_gelu(a2, x)
    refusals = (
        (npu.supports_silu_and_mul(a2, x.double()), "float64"),
        (npu.supports_silu_and_mul(a2, x.view((1,) * 8 + (3, 8))), "10 axes"),
        (npu.supports_silu_and_mul(a2, x[:0]), "empty"),
        (npu.supports_silu_and_mul_with_clamp(a5, x, 10.0), "A5"),
        (npu.supports_swiglu_oai_and_mul(a5, x, *oai), "A5"),
        (npu.supports_swiglu_oai_and_mul(a2, x[0], *oai), "1 axes"),
        (npu.supports_swiglu_oai_and_mul(a2, x[:, ::2], *oai), "strided"),
        (npu.supports_swiglu_oai_and_mul(a2, x[:0], *oai), "empty"),
        (npu.supports_swiglustep_and_mul_triton(a2, x.double(), 7.0), "float64"),
        (npu.supports_situ_and_mul_triton(a2, x.double(), 7.0, None), "float64"),
        (npu.supports_quick_gelu(a5, x), "A5"),
        (npu.supports_quick_gelu(a2, x.long()), "int64"),
        (npu.supports_quick_gelu(a2, x[:0]), "empty"),
    )
    for support, reason in refusals:
        assert not support
        assert reason in support.reason
