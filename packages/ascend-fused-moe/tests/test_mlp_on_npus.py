"""The experts' networks on the simulated NPU equal those on a CPU."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from ascend_fused_moe.eplb import AloneExchange
from ascend_fused_moe.group_list import GroupList, GroupListKind
from ascend_fused_moe.layers.routed_experts import AscendRoutedExperts
from ascend_fused_moe.mlp import Activation, MoEWeights, build_mlp_compute_input, unified_apply_mlp
from ascend_fused_moe.quant_params import build_quant_params
from ascend_fused_moe.testing.quantized import FORMAT_ERRORS, quantized_weight, relative_error
from ascend_ops_core.devices import device_family
from ascend_ops_core.testing.simulated_npu import install

pytestmark = pytest.mark.sim


@pytest.fixture(scope="module", autouse=True)
def _device() -> None:
    install("A3", devices=2, memory_bytes=64 * 1024**2)


def _moved(weights: MoEWeights) -> MoEWeights:
    tensors = {name: value for name, value in vars(weights).items() if value is not None}
    return replace(weights, **{name: value.to("npu") for name, value in tensors.items()})


@pytest.mark.parametrize("limit", [None, 0.5])
@pytest.mark.parametrize(
    ("mode", "family"),
    [
        ("none", "A2"),
        ("none", "A5"),
        ("w8a8", "A3"),
        ("w8a8", "A5"),
        ("w4a8", "A2"),
        ("fp8_block", "A5"),
        ("mxfp8", "A5"),
        ("mxfp4", "A5"),
    ],
)
def test_networks(mode: str, family: str, limit: float | None) -> None:
    """Rows behind the groups hold NaN and are not read; int8 takes the operators that fuse."""
    quant = build_quant_params(mode)
    w13, w2 = torch.randn(3, 128, 128) / 11, torch.randn(3, 128, 64) / 8
    if quant.is_quant:
        (w13, w13_scale), (w2, w2_scale) = (
            quantized_weight(one, quant.weights) for one in (w13, w2)
        )
        if mode == "w8a8":
            w2_scale = w2_scale.bfloat16()
        weights = MoEWeights(w13, w2, w13_scale, w2_scale)
        if mode == "w8a8":
            weights = replace(weights, w13_nz=w13.transpose(1, 2).contiguous())
    else:
        weights = MoEWeights(w13.bfloat16(), w2.bfloat16())
    rows = torch.randn(20, 128).bfloat16()
    groups = GroupList(torch.tensor([5, 0, 12]), GroupListKind.COUNTS)
    activation = Activation(limit=limit)
    given = build_mlp_compute_input(rows, groups, weights, quant=quant, activation=activation)
    expected = unified_apply_mlp(given)
    rows[17:] = float("nan")
    on_npu = build_mlp_compute_input(
        rows.to("npu"),
        GroupList(groups.values.to("npu"), groups.kind),
        _moved(weights),
        quant=quant,
        activation=activation,
    )
    with device_family(family):
        actual = unified_apply_mlp(on_npu).cpu()
    # Ways that fuse less round once more, so that a few integers fall on the other side.
    assert relative_error(actual[:17], expected[:17]) < FORMAT_ERRORS.get(mode, 0.05) / 5


@pytest.mark.parametrize("mode", ["w8a8", "w4a8"])
def test_a_layer_moves_to_the_npu_with_its_maps(mode: str) -> None:
    """Routing, counting, networks and a rebalance run there; weights fit torch_npu's product."""
    quant = build_quant_params(mode)
    layer = AscendRoutedExperts(3, 128, 64, torch.bfloat16, quant=quant)
    for expert in range(3):
        for part, shape in (("w1", (64, 128)), ("w3", (64, 128)), ("w2", (128, 64))):
            values, scale = quantized_weight(torch.randn(1, *shape) / 8, quant.weights)
            layer.load_expert(expert, part, values[0])
            layer.load_expert(expert, f"{part}_scale", scale[0])
    x, groups = torch.randn(8, 128).bfloat16(), [3, 0, 5]
    list_ = GroupList(torch.tensor(groups), GroupListKind.COUNTS)
    expected = layer(x, list_)
    ids = torch.tensor([[0, 2], [1, 0], [2, 1]], dtype=torch.int32)
    with device_family("A2"):
        layer = layer.to("npu")
        layer.process_weights_after_loading()
        assert (layer.w2.dtype, layer.w2_scale.dtype) == (torch.int8, torch.bfloat16)
        load = torch.zeros(3, dtype=torch.int32, device="npu")
        layer.init_eplb(load)
        assert layer.to_physical(ids.to("npu")).cpu().tolist() == ids.tolist()
        assert load.cpu().tolist() == [2, 2, 2]
        actual = layer(x.to("npu"), GroupList(list_.values.to("npu"), list_.kind)).cpu()
        assert relative_error(actual, expected) < FORMAT_ERRORS[mode] / 5
        assert layer.rebalance((2, 0, 1), AloneExchange()) == 3
        assert layer.to_physical(ids.to("npu")).cpu().tolist() == [[1, 0], [2, 1], [0, 2]]
        moved = torch.cat([x[3:], x[:3]]).to("npu")
        counts = GroupList(torch.tensor([5, 3, 0], device="npu"), GroupListKind.COUNTS)
        again = layer(moved, counts).cpu()
    assert torch.equal(torch.cat([again[5:], again[:5]]), actual)
