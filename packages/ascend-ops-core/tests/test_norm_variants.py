"""Norms with bias, offset, residual and mean against independent formulas, and their limits."""

from __future__ import annotations

import pytest
import torch
from ascend_ops_core.devices import facts_of
from ascend_ops_core.errors import InvalidInputError
from ascend_ops_core.ops import norm
from ascend_ops_core.ops.norm import npu
from ascend_ops_core.testing import assert_close
from torch.nn import functional as F

DTYPES = (torch.float32, torch.bfloat16, torch.float16)
TOKENS = (0, 1, 3, 65)
WIDTH, EPS = 37, 1e-5


def rms(x: torch.Tensor) -> torch.Tensor:
    return F.rms_norm(x.double(), (x.shape[-1],), eps=EPS)


@pytest.mark.oracle("ascend_ops_core::rms_norm_bias", "torch's rms_norm in float64 plus the bias")
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("tokens", TOKENS)
def test_bias(tokens: int, dtype: torch.dtype) -> None:
    x = torch.randn(tokens, WIDTH).to(dtype)
    weight, bias = torch.randn(WIDTH), torch.randn(WIDTH)
    got = norm.rms_norm_bias(x, weight, bias, EPS)
    assert got.dtype == dtype
    assert_close(got, rms(x) * weight.double() + bias.double(), scale=3)
    assert_close(norm.rms_norm_bias(x, None, bias, EPS), rms(x) + bias.double(), scale=3)


@pytest.mark.oracle("ascend_ops_core::gemma_rms_norm", "transformers' Gemma3RMSNorm")
@pytest.mark.parametrize("tokens", TOKENS)
def test_gemma(tokens: int) -> None:
    from transformers.models.gemma3.modeling_gemma3 import Gemma3RMSNorm

    module = Gemma3RMSNorm(WIDTH, eps=EPS)
    module.weight.data.normal_()
    for dtype in DTYPES:
        x = torch.randn(tokens, WIDTH).to(dtype)
        got = norm.gemma_rms_norm(x, module.weight.data, EPS)
        assert got.dtype == dtype
        assert_close(got, module(x).detach())


@pytest.mark.oracle("ascend_ops_core::add_rms_norm", "torch's rms_norm of the rounded sum")
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("tokens", TOKENS)
def test_add(tokens: int, dtype: torch.dtype) -> None:
    x, residual = (torch.randn(tokens, WIDTH).to(dtype) for _ in range(2))
    weight, bias = torch.randn(WIDTH), torch.randn(WIDTH)
    kept = x.clone(), residual.clone()
    normed, total = norm.add_rms_norm(x, residual, weight, bias, EPS)
    assert torch.equal(total, x + residual)
    assert_close(normed, rms(total) * weight.double() + bias.double(), scale=3)
    assert_close(norm.add_rms_norm(x, residual, weight, None, EPS)[0], rms(total) * weight.double())
    assert_close(norm.add_rms_norm(x, residual, None, None, EPS)[0], rms(total))
    assert torch.equal(x, kept[0])
    assert torch.equal(residual, kept[1])


@pytest.mark.oracle("ascend_ops_core::layer_norm", "torch's layer_norm")
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("tokens", TOKENS)
def test_layer_norm(tokens: int, dtype: torch.dtype) -> None:
    x = (3 + torch.randn(tokens, WIDTH)).to(dtype)
    weight, bias = torch.randn(WIDTH), torch.randn(WIDTH)
    for w, b in ((weight, bias), (weight, None), (None, bias), (None, None)):
        expected = F.layer_norm(
            x.double(),
            (WIDTH,),
            None if w is None else w.double(),
            None if b is None else b.double(),
            EPS,
        )
        got = norm.layer_norm(x, w, b, EPS)
        assert got.dtype == dtype
        assert_close(got, expected, scale=3)


def test_bad_vectors_are_refused() -> None:
    x, short = torch.randn(2, 8), torch.randn(7)
    for call in (
        lambda: norm.rms_norm_bias(x, None, short, EPS),
        lambda: norm.gemma_rms_norm(x, short, EPS),
        lambda: norm.add_rms_norm(x, x, short, None, EPS),
        lambda: norm.layer_norm(x, None, short, EPS),
    ):
        with pytest.raises(InvalidInputError, match=r"one value per channel, shape \[8\]"):
            call()
    with pytest.raises(InvalidInputError, match="one shape and one dtype"):
        norm.add_rms_norm(x, x.half(), None, None, EPS)
    with pytest.raises(InvalidInputError, match="one shape and one dtype"):
        norm.add_rms_norm(x, x[:1], None, None, EPS)


def test_limits_of_torch_npu() -> None:
    a2, a5 = facts_of("A2"), facts_of("A5")
    x, w = torch.empty(2, 8, dtype=torch.bfloat16), torch.empty(8, dtype=torch.bfloat16)
    assert npu.supports_rms_norm(a2, x, w, EPS)
    assert "no weight" in npu.supports_rms_norm(a2, x, None, EPS).reason
    assert "one dtype" in npu.supports_rms_norm(a2, x, w.float(), EPS).reason
    assert "int8" in npu.supports_rms_norm(a2, x.to(torch.int8), w, EPS).reason
    assert "empty" in npu.supports_rms_norm(a2, x[:0], w, EPS).reason
    assert "up to 8" in npu.supports_rms_norm(a2, x.view(2, *[1] * 7, 8), w, EPS).reason
    assert npu.supports_gemma_rms_norm(a2, x, w, EPS)
    assert "A2 and A3" in npu.supports_gemma_rms_norm(a5, x, w, EPS).reason
    assert "contiguous" in npu.supports_gemma_rms_norm(a2, x[:, ::2], w, EPS).reason
    assert "one dtype" in npu.supports_gemma_rms_norm(a2, x, w.float(), EPS).reason
    assert npu.supports_add_rms_norm(a5, x, x, w, None, EPS)
    assert "a bias" in npu.supports_add_rms_norm(a2, x, x, w, w, EPS).reason
    assert npu.supports_layer_norm(a2, x, w, None, EPS)
    assert "bias of" in npu.supports_layer_norm(a2, x, w, w.float(), EPS).reason
    assert "empty" in npu.supports_layer_norm(a2, x[:0], w, w, EPS).reason
    assert "takes float" in npu.takes_float(x.to(torch.int8)).reason
