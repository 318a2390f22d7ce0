"""vLLM's activations against ours, which an NPU runs in their place."""

from __future__ import annotations

import pytest
import torch
from ascend_ops_core.testing import assert_close

pytestmark = pytest.mark.engine


@pytest.fixture(autouse=True)
def _config() -> object:
    from vllm.config import VllmConfig, set_current_vllm_config
    from vllm.platforms import current_platform

    # vLLM's classes look their CPU operators up when they are made.
    current_platform.import_kernels()
    with set_current_vllm_config(VllmConfig()):
        yield


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("AscendQuickGELU", ()),
        ("AscendSiluAndMul", ()),
        ("AscendSiluAndMulWithClamp", (2.0,)),
        ("AscendSiluAndMulWithClamp", (2.0, 1.702, 1.0)),
        ("AscendSituAndMul", (2.0,)),
        ("AscendSituAndMul", (2.0, 4.0)),
        ("AscendSwigluOAIAndMul", (1.702, 2.0)),
        ("AscendSwigluStepAndMul", (2.0,)),
    ],
)
def test_equals_vllm(name: str, arguments: tuple[float, ...], dtype: torch.dtype) -> None:
    from ascend_ops_core.vllm import activation

    layer = getattr(activation, name)(*arguments)
    x = 3 * torch.randn(5, 34)
    # In 16 bits vLLM rounds between, so it is asked in float32.
    expected = layer.forward_native(x.to(dtype).float())
    assert_close(layer.forward_oot(x.to(dtype)), expected, scale=3)
