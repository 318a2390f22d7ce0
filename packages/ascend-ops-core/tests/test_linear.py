"""linear and grouped_linear on both sides of every crossover of the CPU kernels."""

from __future__ import annotations

import pytest
import torch
from ascend_ops_core.devices import facts_of
from ascend_ops_core.ops.linear import (
    cpu,
    grouped_linear,
    linear,
    npu,
    reference,
    to_nz,
    unquantized_gemm,
)
from ascend_ops_core.testing import assert_close

TOKENS = (0, 1, 3, 4, 5, 16, 17, 65)
DTYPES = (torch.float32, torch.bfloat16, torch.float16)


def product(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """In float64 and by outer products, so that neither GEMM nor GEMV of torch decides."""
    x, weight = x.double(), weight.double()
    return (x[:, None, :] * weight[None, :, :]).sum(-1)


@pytest.mark.oracle("ascend_ops_core::linear", "outer products in float64")
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("tokens", TOKENS)
@pytest.mark.parametrize(("inputs", "outputs"), [(64, 32), (37, 19), (1, 1)])
def test_linear(tokens: int, inputs: int, outputs: int, dtype: torch.dtype) -> None:
    torch.manual_seed(tokens)
    x = torch.randn(tokens, inputs).to(dtype)
    weight = (torch.randn(outputs, inputs) / inputs**0.5).to(dtype)
    got = linear(x, weight)
    assert got.dtype == dtype
    assert_close(got, product(x, weight))
    assert_close(reference.linear(x, weight), product(x, weight))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("tokens", TOKENS)
@pytest.mark.parametrize("groups", [1, 3])
def test_grouped_linear(tokens: int, groups: int, dtype: torch.dtype) -> None:
    torch.manual_seed(tokens)
    x = torch.randn(tokens, groups, 37).to(dtype)
    weight = (torch.randn(groups, 19, 37) / 6).to(dtype)
    expected = torch.stack([product(x[:, g], weight[g]) for g in range(groups)], dim=1)
    got = grouped_linear(x, weight)
    assert got.dtype == dtype
    assert_close(got, expected)
    assert_close(reference.grouped_linear(x, weight), expected)


@pytest.mark.oracle("ascend_ops_core::grouped_linear", "transformers, DeepseekV4GroupedLinear")
def test_grouped_equals_transformers() -> None:
    from transformers.models.deepseek_v4.modeling_deepseek_v4 import DeepseekV4GroupedLinear

    module = DeepseekV4GroupedLinear(10, 12, 3)
    for tokens in (2, 20):
        x = torch.randn(tokens, 3, 10)
        assert_close(grouped_linear(x, module.weight.data.view(3, 4, 10)), module(x).detach())


@pytest.mark.parametrize("tokens", [4, 20])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_strides(tokens: int, dtype: torch.dtype) -> None:
    x = torch.randn(24, 2 * tokens).to(dtype).T[::2]
    weight = torch.randn(24, 9).to(dtype).T
    assert not x.is_contiguous()
    assert_close(linear(x, weight), product(x, weight), scale=5)
    assert_close(linear(x, weight.contiguous()), product(x, weight), scale=5)
    split = torch.randn(tokens, 2, 40).to(dtype)[..., 5:29]
    grouped = torch.randn(2, 9, 24).to(dtype)
    expected = torch.stack([product(split[:, g], grouped[g]) for g in range(2)], dim=1)
    assert_close(grouped_linear(split, grouped), expected, scale=5)


def test_few_tokens_run_without_the_definition(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reference, "linear", None)
    monkeypatch.setattr(reference, "grouped_linear", None)
    assert linear(torch.randn(2, 8), torch.randn(3, 8)).isfinite().all()
    assert grouped_linear(torch.randn(2, 1, 8), torch.randn(1, 3, 8)).isfinite().all()


@pytest.mark.parametrize("native", [True, False])
def test_many_bfloat16_tokens_with_and_without_hardware(
    monkeypatch: pytest.MonkeyPatch, native: bool
) -> None:
    monkeypatch.setattr(cpu, "native_bf16", lambda: native)
    # Six or three tokens at once, and a last part of less.
    monkeypatch.setattr(cpu, "_PACKED", 96)
    x, weight = torch.randn(20, 16).bfloat16(), torch.randn(2, 7, 16).bfloat16()
    assert_close(linear(x, weight[0]), product(x, weight[0]), scale=4)
    both = x.unsqueeze(1).repeat(1, 2, 1)
    expected = torch.stack([product(x, weight[g]) for g in range(2)], dim=1)
    assert_close(grouped_linear(both, weight), expected, scale=4)


@pytest.mark.parametrize(
    ("tokens", "groups", "inputs", "outputs"), [(25, 1, 33, 65), (17, 2, 2065, 3), (49, 3, 48, 32)]
)
def test_panels_of_bfloat16(
    tokens: int, groups: int, inputs: int, outputs: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cpu, "native_bf16", lambda: False)
    torch.manual_seed(tokens)
    x = torch.randn(tokens, groups, inputs).bfloat16()
    weight = (torch.randn(groups, outputs, inputs) / inputs**0.5).bfloat16()
    expected = torch.stack([product(x[:, g], weight[g]) for g in range(groups)], dim=1)
    assert_close(grouped_linear(x, weight), expected)


def test_accumulates_in_float32() -> None:
    # In bfloat16 the sum would stop growing at 256.
    x, weight = torch.ones(1, 4096).bfloat16(), torch.ones(1, 4096).bfloat16()
    assert float(linear(x, weight)) == 4096
    assert float(linear(x.expand(20, -1).contiguous(), weight)[7]) == 4096


def test_nan_stays_in_its_token() -> None:
    x = torch.randn(5, 8)
    x[2, 3] = float("nan")
    out = linear(x, torch.randn(4, 8))
    assert out[2].isnan().all()
    assert out[[0, 1, 3, 4]].isfinite().all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_shapes_that_do_not_fit_are_refused(dtype: torch.dtype) -> None:
    with pytest.raises(RuntimeError):
        linear(torch.zeros(2, 8, dtype=dtype), torch.zeros(3, 6, dtype=dtype))
    with pytest.raises(RuntimeError):
        grouped_linear(torch.zeros(2, 2, 8, dtype=dtype), torch.zeros(3, 4, 8, dtype=dtype))
    with pytest.raises(RuntimeError):
        linear(torch.zeros(2, 8, dtype=dtype), torch.zeros(3, 8, dtype=torch.float64))


@pytest.mark.parametrize("which", [0, 1])
def test_gradients_use_the_definition(which: int) -> None:
    pair = [torch.randn(2, 8), torch.randn(3, 8)]
    pair[which].requires_grad_()
    linear(pair[0], pair[1]).sum().backward()
    other = pair[1 - which].sum(0).expand_as(pair[which])
    assert pair[which].grad is not None
    assert_close(pair[which].grad, other)


@pytest.mark.oracle("ascend_ops_core::unquantized_gemm", "outer products in float64")
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("lead", [(0,), (3,), (2, 9), (2, 0, 3)], ids=str)
@pytest.mark.parametrize("biased", [True, False])
def test_unquantized_gemm(lead: tuple[int, ...], biased: bool, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    x = torch.randn(*lead, 37).to(dtype)
    weight, bias = (torch.randn(19, 37) / 6).to(dtype), torch.randn(19).to(dtype)
    expected = product(x.reshape(-1, 37), weight) + (bias.double() if biased else 0)
    got = unquantized_gemm(x, weight, bias if biased else None)
    assert got.dtype == dtype
    assert_close(got, expected.view(*lead, 19), scale=2)


def test_limits_of_the_nz_layout() -> None:
    facts = facts_of("A2")
    weight = torch.empty(64, 128, dtype=torch.bfloat16, device="meta")
    assert npu.supports_to_nz(facts, weight)
    assert "float32" in npu.supports_to_nz(facts, weight.float()).reason
    assert "16 x 16" in npu.supports_to_nz(facts, weight[:, :100]).reason
    assert "1 axes" in npu.supports_to_nz(facts, weight[0]).reason


@pytest.mark.oracle("ascend_ops_core::to_nz", "the values themselves")
def test_nz_keeps_the_values() -> None:
    weight = torch.randn(32, 48)
    other = to_nz(weight)
    assert torch.equal(other, weight)
    assert other.data_ptr() != weight.data_ptr()
