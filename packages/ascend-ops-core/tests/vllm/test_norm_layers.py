"""Our norm layers in vLLM against vLLM's own definitions."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from ascend_ops_core.testing import assert_close

pytestmark = pytest.mark.engine


@pytest.fixture(autouse=True)
def config() -> Iterator[Any]:
    from vllm.config import VllmConfig, set_current_vllm_config

    with set_current_vllm_config(VllmConfig()) as _:
        yield


def filled(layer: Any) -> Any:
    layer.weight.data.normal_()
    return layer


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_rms_norm(dtype: torch.dtype) -> None:
    from ascend_ops_core.vllm.norm import AscendRMSNorm

    layer = filled(AscendRMSNorm(33, dtype=dtype))
    x, residual = (torch.randn(5, 33).to(dtype) for _ in range(2))
    assert_close(layer.forward_oot(x), layer.forward_native(x))
    got = layer.forward_oot(x, residual)
    expected = layer.forward_native(x.clone(), residual.clone())
    for one, other in zip(got, expected, strict=True):
        assert_close(one, other)


def test_bias_of_a_checkpoint(monkeypatch: pytest.MonkeyPatch) -> None:
    from ascend_ops_core.vllm import norm

    monkeypatch.setattr(norm, "_checkpoint_has_norm_bias", lambda: True)
    layer = filled(norm.AscendRMSNorm(9))
    x, bias = torch.randn(4, 9), torch.randn(9)
    assert_close(layer.forward_oot(x), layer.forward_native(x))
    with pytest.raises(ValueError, match=r"norm.bias of shape \[8\]"):
        layer.bias.weight_loader(layer.bias, bias[:8])
    layer.bias.weight_loader(layer.bias, bias)
    assert_close(layer.forward_oot(x), layer.forward_native(x) + bias, scale=3)
    normed, total = layer.forward_oot(x, x)
    assert_close(normed, layer.forward_native(2 * x) + bias, scale=3)
    assert torch.equal(total, 2 * x)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_gemma(dtype: torch.dtype) -> None:
    from ascend_ops_core.vllm.norm import AscendGemmaRMSNorm

    layer = filled(AscendGemmaRMSNorm(33))
    x, residual = (torch.randn(5, 33).to(dtype) for _ in range(2))
    assert_close(layer.forward_oot(x), layer.forward_native(x))
    for one, other in zip(
        layer.forward_oot(x, residual), layer.forward_native(x, residual), strict=True
    ):
        assert_close(one, other, scale=3)


@pytest.mark.parametrize("before", [True, False])
@pytest.mark.parametrize("group", [None, 8])
def test_gated(group: int | None, before: bool) -> None:
    from ascend_ops_core.vllm.norm import AscendRMSNormGated

    layer = filled(AscendRMSNormGated(24, group_size=group, norm_before_gate=before))
    x, z = torch.randn(5, 24), torch.randn(5, 24)
    assert_close(layer.forward_oot(x, z), layer.forward_native(x, z))
    assert_close(layer.forward_oot(x), layer.forward_native(x))


@pytest.mark.parametrize("activation", ["silu", "sigmoid"])
def test_fused_gated(activation: str) -> None:
    from ascend_ops_core.vllm.norm import AscendFusedRMSNormGated

    layer = filled(AscendFusedRMSNormGated(24, activation=activation))
    x, gate, residual = (torch.randn(5, 24) for _ in range(3))
    assert_close(layer.forward_oot(x, gate), layer.forward_native(x, gate))
    y, total = layer.forward_oot(x, gate, residual, prenorm=True)
    assert_close(y, layer.forward_native(x + residual, gate))
    assert torch.equal(total, x + residual)


def test_layer_norm_function() -> None:
    from ascend_ops_core.vllm.norm import LayerNormFn

    x, weight, bias = torch.randn(3, 8), torch.randn(8), torch.randn(8)
    expected = torch.nn.functional.layer_norm(x, (8,), weight, bias, 1e-6)
    assert_close(LayerNormFn.apply(x, weight, bias), expected, scale=3)


def test_registration_can_be_repeated(monkeypatch: pytest.MonkeyPatch) -> None:
    from ascend_ops_core import vllm as ours
    from ascend_ops_core.errors import InvalidInputError
    from ascend_ops_core.vllm.norm import AscendRMSNorm
    from vllm.model_executor import custom_op
    from vllm.model_executor.layers.layernorm import RMSNorm

    monkeypatch.setattr(custom_op, "op_registry_oot", {})
    ours.register()
    ours.register()
    assert isinstance(RMSNorm(8), AscendRMSNorm)
    assert AscendRMSNorm.name == "rms_norm"
    custom_op.op_registry_oot["RMSNorm"] = RMSNorm
    with pytest.raises(InvalidInputError, match="registered for it already"):
        ours.register()
