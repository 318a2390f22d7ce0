"""Gated norms, quantising norms, Hadamard rotation and scaled sum against independent formulas."""

from __future__ import annotations

import pytest
import torch
from ascend_ops_core.devices import facts_of
from ascend_ops_core.errors import InvalidInputError
from ascend_ops_core.ops.gated_norm import layer_norm_gated, rms_norm_gated
from ascend_ops_core.ops.hadamard import hadamard
from ascend_ops_core.ops.muls_add import muls_add
from ascend_ops_core.ops.norm_quant import add_rms_norm_dynamic_quant, npu, rms_norm_dynamic_quant
from ascend_ops_core.testing import assert_close
from torch.nn import functional as F

DTYPES = (torch.float32, torch.bfloat16, torch.float16)
EPS = 1e-5


@pytest.mark.oracle("ascend_ops_core::rms_norm_gated", "transformers' Mamba2 and Qwen3-Next norms")
@pytest.mark.parametrize("tokens", [0, 1, 17])
def test_equals_transformers(tokens: int) -> None:
    from transformers.models.mamba2.modeling_mamba2 import MambaRMSNormGated
    from transformers.models.qwen3_next.modeling_qwen3_next import Qwen3NextRMSNormGated

    x, gate = torch.randn(tokens, 24), torch.randn(tokens, 24)
    first, last = MambaRMSNormGated(24, 8, eps=EPS), Qwen3NextRMSNormGated(24, eps=EPS)
    for module in (first, last):
        module.weight.data.normal_()
    got = rms_norm_gated(x, gate, first.weight.data, eps=EPS, group_size=8, norm_before_gate=False)
    assert_close(got, first(x, gate).detach())
    assert_close(rms_norm_gated(x, gate, last.weight.data, eps=EPS), last(x, gate).detach())


@pytest.mark.oracle("ascend_ops_core::layer_norm_gated", "torch's norms by group in float64")
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("before", [True, False])
@pytest.mark.parametrize("activation", ["silu", "swish", "sigmoid"])
def test_groups(activation: str, before: bool, dtype: torch.dtype) -> None:
    x, gate = (torch.randn(5, 24).to(dtype) for _ in range(2))
    weight, bias = torch.randn(24), torch.randn(24)
    act = torch.sigmoid if activation == "sigmoid" else F.silu
    factor = act(gate.double())
    source = x.double() if before else x.double() * factor
    for norm, call in ((F.rms_norm, rms_norm_gated), (F.layer_norm, layer_norm_gated)):
        normed = norm(source.view(5, 3, 8), (8,), eps=EPS).view(5, 24)
        expected = normed * weight.double() + bias.double()
        expected = expected * factor if before else expected
        got = call(
            x,
            gate,
            weight,
            bias,
            eps=EPS,
            group_size=8,
            norm_before_gate=before,
            activation=activation,
        )
        assert got.dtype == dtype
        assert_close(got, expected, scale=3)


@pytest.mark.parametrize("rows", [0, 3, 700])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize(("before", "activation"), [(True, "sigmoid"), (False, "silu")])
def test_heads_without_a_bias(rows: int, dtype: torch.dtype, before: bool, activation: str) -> None:
    """What runs as a kernel on a CPU, below and above the size from which threads share it."""
    x, gate = (torch.randn(rows, 2, 24).to(dtype) for _ in range(2))
    weight = torch.randn(24).to(dtype)
    act = torch.sigmoid if activation == "sigmoid" else F.silu
    factor = act(gate.double())
    source = x.double() if before else x.double() * factor
    expected = F.rms_norm(source.unflatten(-1, (2, 12)), (12,), eps=EPS).flatten(-2)
    expected = expected * weight.double() * (factor if before else 1)
    got = rms_norm_gated(
        x,
        gate,
        weight,
        eps=EPS,
        group_size=12,
        norm_before_gate=before,
        activation=activation,
    )
    assert got.dtype == dtype
    assert_close(got, expected, scale=3)


def test_bad_gates_are_refused() -> None:
    x = torch.randn(2, 8)
    with pytest.raises(InvalidInputError, match="it divides the 8 channels"):
        rms_norm_gated(x, x, None, eps=EPS, group_size=3)
    with pytest.raises(InvalidInputError, match="known are silu"):
        rms_norm_gated(x, x, None, eps=EPS, activation="gelu")
    with pytest.raises(InvalidInputError, match="both have one shape"):
        layer_norm_gated(x, x[:1], None, eps=EPS)
    with pytest.raises(InvalidInputError, match="one value per channel"):
        layer_norm_gated(x, x, torch.ones(7), eps=EPS)


@pytest.mark.oracle("ascend_ops_core::rms_norm_dynamic_quant", "torch's rms_norm in float64")
@pytest.mark.oracle("ascend_ops_core::add_rms_norm_dynamic_quant", "torch's rms_norm in float64")
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_quantised_rows_are_within_half_a_step(dtype: torch.dtype) -> None:
    x, residual = (torch.randn(2, 7, 40).to(dtype) for _ in range(2))
    x[0, 0] = 0
    weight, smooth = torch.randn(40), torch.rand(40)
    values, scale = rms_norm_dynamic_quant(x, weight, None, smooth, eps=EPS)
    assert values.dtype == torch.int8
    assert scale.shape == (2, 7)
    expected = F.rms_norm(x.double(), (40,), eps=EPS) * weight.double() * smooth.double()
    step = scale.double().unsqueeze(-1)
    assert ((values * step - expected).abs() <= step * 0.5001).all()
    assert values[0, 0].eq(0).all()
    assert scale[0, 0] == 0
    assert values.abs().amax(-1).flatten()[1:].eq(127).all()
    total = x + residual
    fused = add_rms_norm_dynamic_quant(x, residual, weight, None, smooth, eps=EPS)
    alone = rms_norm_dynamic_quant(total, weight, None, smooth, eps=EPS)
    for got, wanted in zip(fused, (*alone, total), strict=True):
        assert torch.equal(got, wanted)


def test_limits_of_the_quantising_norm() -> None:
    x, w = torch.empty(2, 8, dtype=torch.bfloat16), torch.empty(8, dtype=torch.bfloat16)
    supports = npu.supports_add_rms_norm_dynamic_quant
    a2 = facts_of("A2")
    assert supports(a2, x, x, w, w, w, EPS)
    assert "A2 and A3" in supports(facts_of("A5"), x, x, w, None, None, EPS).reason
    assert "float16, bfloat16" in supports(a2, x.float(), x, w, None, None, EPS).reason
    assert "2 to 8" in supports(a2, x[0], x, w, None, None, EPS).reason
    assert "no weight" in supports(a2, x, x, None, None, None, EPS).reason
    assert "smooth_scale of" in supports(a2, x, x, w, None, w.float(), EPS).reason
    assert "empty" in supports(a2, x[:0], x, w, None, None, EPS).reason


@pytest.mark.oracle("ascend_ops_core::hadamard", "the sign (-1)^popcount(i & j), term by term")
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("block", [1, 2, 8, 64])
def test_hadamard(block: int, dtype: torch.dtype) -> None:
    signs = [[(-1.0) ** (i & j).bit_count() for j in range(block)] for i in range(block)]
    x = torch.randn(3, 2, 3 * block).to(dtype)
    expected = x.double().unflatten(-1, (3, block)) @ torch.tensor(signs).double() * 0.25
    assert_close(hadamard(x, block=block, scale=0.25), expected.flatten(-2), scale=3)


@pytest.mark.parametrize("width", [1, 96, 7168, 16384])
def test_two_rotations_give_the_input_back(width: int) -> None:
    x = torch.randn(2, width)
    assert_close(hadamard(hadamard(x)), x)
    assert hadamard(x[:0]).shape == (0, width)


@pytest.mark.parametrize("block", [0, 3, 16, 16384])
def test_bad_blocks_are_refused(block: int) -> None:
    with pytest.raises(InvalidInputError, match="a power of two up to 8192"):
        hadamard(torch.randn(2, 24 if block < 10000 else 16384), block=block)


@pytest.mark.oracle("ascend_ops_core::muls_add", "torch in float64")
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_muls_add(dtype: torch.dtype) -> None:
    x, y = torch.randn(9, 5).to(dtype).t(), torch.randn(5, 9).to(dtype)
    got = muls_add(x, y, 2.5)
    assert got.dtype == dtype
    assert_close(got, x.double() * 2.5 + y.double(), scale=3)
    with pytest.raises(InvalidInputError, match="one shape and one dtype"):
        muls_add(x, x.t(), 1.0)
