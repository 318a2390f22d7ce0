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
EVERYWHERE = {
    "BailingMoELinearAttention",
    "MultiHeadLatentAttentionWrapper",
    "QwenGatedDeltaNetAttention",
}


def test_registration_on_a_cpu_takes_no_encoder(monkeypatch: pytest.MonkeyPatch) -> None:
    from ascend_attention.vllm import register
    from vllm.model_executor import custom_op

    registry: dict[str, type] = {}
    monkeypatch.setattr(custom_op, "op_registry_oot", registry)
    register()
    assert registry.keys() <= EVERYWHERE


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
    assert registry.keys() - EVERYWHERE == {"MMEncoderAttention"}
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


def _decoders(**settings: Any) -> tuple[Any, Any]:
    from ascend_attention.vllm.qwen2_decoder import AscendCustomQwen2Decoder
    from vllm.model_executor.models.deepencoder2 import CustomQwen2Decoder

    shape = {
        "decoder_layer": 3,
        "hidden_dimension": 48,
        "num_attention_heads": 6,
        "num_key_value_heads": 2,
        "intermediate_size": 40,
        "vocab_size": 8,
        **settings,
    }
    torch.manual_seed(0)
    theirs, ours = CustomQwen2Decoder(**shape), AscendCustomQwen2Decoder(**shape)
    for weight in theirs.parameters():
        torch.nn.init.normal_(weight, std=0.2)
    return theirs.eval(), ours


@pytest.mark.parametrize(("batch", "half"), [(2, 1), (3, 5), (1, 72), (2, 128)])
def test_pictures_and_queries(batch: int, half: int) -> None:
    theirs, ours = _decoders()
    assert ours.load_state_dict(theirs.state_dict()) == ([], [])
    embeds = torch.randn(batch, 2 * half, 48)
    kinds = torch.tensor([0, 1]).repeat_interleave(half).expand(batch, -1)
    with torch.no_grad():
        (found,) = ours(embeds, kinds)
        assert_close(found, theirs(embeds, kinds)[0], scale=64)
        # A query sees the queries before it: hiding the order would change its row.
        swapped = torch.cat([embeds[:, :half], embeds[:, half:].flip(1)], dim=1)
        if half > 1:
            assert not torch.allclose(ours(swapped, kinds)[0][:, half:].flip(1), found[:, half:])
        torch.testing.assert_close(ours(swapped, kinds)[0][:, :half], found[:, :half])


def test_no_pictures() -> None:
    _, ours = _decoders()
    for shape in ((0, 6, 48), (2, 0, 48)):
        assert ours(torch.empty(shape), torch.empty(shape[:2]))[0].shape == shape


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"hidden_act": "gelu"}, "hidden_act='gelu'"),
        ({"attention_dropout": 0.1}, "attention_dropout=0.1"),
        ({"num_key_value_heads": 4}, "6 heads, 4 key heads"),
    ],
)
def test_other_decoders_are_refused(settings: dict[str, Any], named: str) -> None:
    from ascend_attention.vllm.qwen2_decoder import AscendCustomQwen2Decoder

    shape = {"hidden_dimension": 48, "num_attention_heads": 6, "decoder_layer": 1, **settings}
    with pytest.raises(InvalidInputError, match=named):
        AscendCustomQwen2Decoder(**shape)


def test_other_inputs_are_refused() -> None:
    _, ours = _decoders(max_position_embeddings=8)
    for rows, given, named in (
        (5, {}, "embeds of 5 rows"),
        (10, {}, "10 rows"),
        (4, {"attention_mask": torch.ones(1, 4)}, "attention_mask"),
        (4, {"position_ids": torch.ones(1, 4)}, "position_ids"),
    ):
        with pytest.raises(InvalidInputError, match=named):
            ours(torch.zeros(1, rows, 48), torch.zeros(1, rows), **given)
