"""RMS norm: the CPU kernel, its definition, and transformers' module."""

from __future__ import annotations

import pytest
import torch
from ascend_ops_core.ops.norm import _cpu, reference, rms_norm
from ascend_ops_core.testing import assert_close

TOKENS = (0, 1, 3, 4, 5, 16, 17, 65)
DTYPES = (torch.float32, torch.bfloat16, torch.float16)
EPS = 1e-6


def brute_force(x: torch.Tensor, weight: torch.Tensor | None, eps: float) -> torch.Tensor:
    rows = [row / (sum(v * v for v in row.tolist()) / len(row) + eps) ** 0.5 for row in x.double()]
    out = torch.stack(rows) if rows else x.double()
    return out if weight is None else out * weight.double()


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("tokens", TOKENS)
@pytest.mark.parametrize("weighted", [True, False])
def test_equals_brute_force(tokens: int, dtype: torch.dtype, weighted: bool) -> None:
    torch.manual_seed(tokens)
    x = (3 * torch.randn(tokens, 37)).to(dtype)
    weight = 1 + 0.1 * torch.randn(37) if weighted else None
    got = rms_norm(x, weight, EPS)
    assert got.dtype == dtype
    assert_close(got, brute_force(x, weight, EPS))
    assert_close(reference.rms_norm(x, weight, EPS), brute_force(x, weight, EPS))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("width", [1, 63, 64, 513])
def test_parallel_and_serial_kernels_agree_with_the_definition(
    dtype: torch.dtype, width: int
) -> None:
    for rows in (2, (1 << 15) // width + 1):
        x = torch.randn(rows, width).to(dtype)
        assert_close(rms_norm(x, None, EPS), reference.rms_norm(x, None, EPS))


@pytest.mark.oracle("ascend_ops_core::rms_norm", "transformers, DeepseekV4RMSNorm")
def test_equals_transformers() -> None:
    from transformers.models.deepseek_v4.modeling_deepseek_v4 import (
        DeepseekV4RMSNorm,
        DeepseekV4UnweightedRMSNorm,
    )

    x = torch.randn(5, 7, 33)
    module = DeepseekV4RMSNorm(33, eps=1e-5)
    module.weight.data.normal_()
    assert_close(rms_norm(x, module.weight.data, 1e-5), module(x).detach())
    assert_close(rms_norm(x, None, 1e-5), DeepseekV4UnweightedRMSNorm(1e-5)(x))
    x = x.bfloat16()
    assert_close(rms_norm(x, module.weight.data, 1e-5), module(x).detach())


def test_any_number_of_leading_axes_and_strides() -> None:
    x = torch.randn(4, 3, 2, 24)
    expected = brute_force(x.reshape(-1, 24), None, EPS).view(x.shape)
    assert_close(rms_norm(x, None, EPS), expected)
    assert_close(rms_norm(x.transpose(0, 2), None, EPS), expected.transpose(0, 2))
    assert_close(rms_norm(torch.randn(2, 48)[:, ::2].copy_(x[0, 0]), None, EPS), expected[0, 0])


def test_eps_matters_for_tiny_rows() -> None:
    x = torch.full((2, 8), 1e-4)
    assert_close(rms_norm(x, None, 1e-6), torch.full((2, 8), 1e-4 / (1e-8 + 1e-6) ** 0.5))
    assert torch.equal(rms_norm(torch.zeros(2, 8), None, 1e-6), torch.zeros(2, 8))


def test_nan_stays_in_its_row() -> None:
    x = torch.randn(3, 8)
    x[1, 2] = float("nan")
    out = rms_norm(x, None, EPS)
    assert out[1].isnan().all()
    assert out[[0, 2]].isfinite().all()


def test_kernel_runs_without_the_definition(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reference, "rms_norm", None)
    assert rms_norm(torch.randn(2, 8), torch.ones(8), EPS).isfinite().all()


def test_a_weight_of_another_width_is_never_read_past_its_end() -> None:
    with pytest.raises(RuntimeError, match="size of tensor"):
        rms_norm(torch.randn(2, 8), torch.ones(4), EPS)


@pytest.mark.parametrize("which", ["x", "weight"])
def test_gradients_use_the_definition(which: str) -> None:
    x, weight = torch.randn(4, 9, dtype=torch.float32), torch.rand(9)
    leaf = x if which == "x" else weight
    leaf.requires_grad_()
    rms_norm(x, weight, EPS).square().sum().backward()
    assert leaf.grad is not None
    assert leaf.grad.abs().sum() > 0
    with torch.no_grad():
        kernels = _cpu.usable(x, weight)
    assert kernels is not None
