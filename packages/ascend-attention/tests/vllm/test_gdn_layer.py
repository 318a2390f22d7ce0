"""What the layer of Gated DeltaNet takes from vLLM's own."""

from __future__ import annotations

import pytest
import torch
from ascend_attention.vllm.linear.gdn import AscendGatedDeltaNetAttention, conv_taps

pytestmark = pytest.mark.engine


@pytest.mark.parametrize("shape", [(6, 1, 4), (6, 4)])
def test_taps_of_a_convolution_that_vllm_packed(shape: tuple[int, ...]) -> None:
    weight = torch.arange(24.0).reshape(shape)
    conv = torch.nn.Module()
    conv.weight = torch.nn.Parameter(weight)
    assert torch.equal(conv_taps(conv), weight.reshape(6, 4).T)
    conv._cpu_unpacked_conv_weight = weight.reshape(6, 4).clone()
    conv.weight.data = torch.full((64,), float("nan"))
    assert torch.equal(conv_taps(conv), weight.reshape(6, 4).T)


def test_taps_stay_where_they_are_when_weights_are_loaded_again() -> None:
    """Captured graphs read them there."""
    layer = AscendGatedDeltaNetAttention.__new__(AscendGatedDeltaNetAttention)
    torch.nn.Module.__init__(layer)
    layer.conv1d = torch.nn.Module()
    layer.conv1d.weight = torch.nn.Parameter(torch.arange(24.0).reshape(6, 1, 4))
    layer.process_weights_after_loading(torch.float32)
    first = layer.taps
    layer.conv1d.weight.data += 1
    layer.process_weights_after_loading(torch.float32)
    assert layer.taps is first
    assert torch.equal(first, torch.arange(1.0, 25.0).reshape(6, 4).T)
