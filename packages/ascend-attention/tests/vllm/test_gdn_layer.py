"""What the layer of Gated DeltaNet takes from vLLM's own."""

from __future__ import annotations

import pytest
import torch
from ascend_attention.vllm.linear.gdn import conv_taps

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
