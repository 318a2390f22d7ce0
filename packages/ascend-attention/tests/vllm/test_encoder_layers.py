"""vLLM's encoder layers with this package's operators against vLLM's own."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from ascend_ops_core import InvalidInputError
from ascend_ops_core.testing import assert_close

pytestmark = pytest.mark.engine


@pytest.fixture(autouse=True)
def _config() -> Iterator[None]:
    from vllm.config import VllmConfig, set_current_vllm_config

    with set_current_vllm_config(VllmConfig()):
        yield


@pytest.mark.parametrize("flat", [False, True])
@pytest.mark.parametrize(("batch", "lens"), [(3, None), (1, [7, 2, 4]), (1, [13])])
def test_multimodal_encoder(flat: bool, batch: int, lens: list[int] | None) -> None:
    from ascend_attention.vllm.encoder import AscendMMEncoderAttention

    torch.manual_seed(0)
    layer: Any = AscendMMEncoderAttention(4, 12, 0.3, num_kv_heads=2)
    query = torch.randn(batch, 13, 4, 12)
    key, value = (torch.randn(batch, 13, 2, 12) for _ in range(2))
    given = [one.flatten(2) if flat else one for one in (query, key, value)]
    cu = lengths = None
    if lens is not None:
        places = np.array([0, *lens]).cumsum()
        cu = layer.maybe_recompute_cu_seqlens(layer.attn_backend, places, 48, 1, "cpu")
        lengths = layer.maybe_compute_seq_lens(layer.attn_backend, places, "cpu")
        assert lengths.tolist() == lens
    expected = layer.forward_native(*given, cu)
    for told in (lengths, None):
        found = layer.forward_oot(*given, cu, None, told)
        assert found.shape == given[0].shape
        assert_close(found, expected, scale=2)


@pytest.mark.parametrize("relative", [False, True])
def test_relative_positions(relative: bool) -> None:
    from ascend_attention.vllm.relative_position import AscendRelPosAttention
    from vllm.model_executor.models.deepencoder import RelPosAttention

    torch.manual_seed(0)
    layer = AscendRelPosAttention(24, 3, use_rel_pos=relative, input_size=(4, 5))
    if relative:
        torch.nn.init.normal_(layer.rel_pos_h)
        torch.nn.init.normal_(layer.rel_pos_w)
    image = torch.randn(2, 4, 5, 24)
    with torch.no_grad():
        assert_close(layer(image), RelPosAttention.forward(layer, image), scale=4)


# Registered on every platform, once vLLM's module of it is imported.
LINEAR = {"BailingMoELinearAttention", "QwenGatedDeltaNetAttention"}


def test_registration_on_a_cpu_takes_no_encoder(monkeypatch: pytest.MonkeyPatch) -> None:
    from ascend_attention.vllm import register
    from vllm.model_executor import custom_op

    registry: dict[str, type] = {}
    monkeypatch.setattr(custom_op, "op_registry_oot", registry)
    register()
    assert registry.keys() <= LINEAR


def test_registration_on_an_npu(monkeypatch: pytest.MonkeyPatch) -> None:
    from ascend_attention.vllm import register
    from ascend_attention.vllm.encoder import AscendMMEncoderAttention
    from vllm.model_executor import custom_op
    from vllm.platforms import current_platform

    registry: dict[str, type] = {}
    monkeypatch.setattr(custom_op, "op_registry_oot", registry)
    monkeypatch.setattr(type(current_platform), "device_type", "npu")
    deepencoder = "vllm.model_executor.models.deepencoder"
    monkeypatch.delitem(sys.modules, deepencoder, raising=False)
    register()
    assert registry.keys() - LINEAR == {"MMEncoderAttention"}
    assert registry["MMEncoderAttention"] is AscendMMEncoderAttention
    monkeypatch.setitem(sys.modules, deepencoder, ModuleType(deepencoder))
    relative = ModuleType("ascend_attention.vllm.relative_position")
    relative.AscendRelPosAttention = list
    monkeypatch.setitem(sys.modules, relative.__name__, relative)
    register()
    assert registry["RelPosAttention"] is list
    registry["MMEncoderAttention"] = dict
    with pytest.raises(InvalidInputError, match="vLLM's class MMEncoderAttention"):
        register()
