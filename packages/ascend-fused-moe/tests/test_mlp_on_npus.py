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
from ascend_ops_core.testing.simulated_npu import counters, install

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
        ("fp8_block with powers", "A5"),
        ("mxfp8", "A5"),
        ("mxfp4", "A5"),
    ],
)
def test_networks(mode: str, family: str, limit: float | None) -> None:
    """Rows behind the groups hold NaN and are not read; the host waits for nothing."""
    mode, _, powers = mode.partition(" with ")
    quant = build_quant_params(mode)
    w13, w2 = torch.randn(3, 128, 128) / 11, torch.randn(3, 128, 64) / 8
    if quant.is_quant:
        (w13, w13_scale), (w2, w2_scale) = (
            quantized_weight(one, quant.weights, powers=bool(powers)) for one in (w13, w2)
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
        unified_apply_mlp(on_npu)
        before = counters()
        result = unified_apply_mlp(on_npu)
        done = counters() - before
        actual = result.cpu()
    # What runs as its definition reads the group list, and so cannot be part of a graph.
    assert bool(done.device_to_host or done.synchronisations) == (mode == "w4a8")
    # Ways that fuse less round once more, so that a few integers fall on the other side.
    assert relative_error(actual[:17], expected[:17]) < FORMAT_ERRORS.get(mode, 0.05) / 5


@pytest.mark.parametrize(
    ("mode", "family", "stored"),
    [
        ("w8a8", "A2", torch.int8),
        ("w4a8", "A3", torch.int8),
        ("w4a8_mxfp", "A5", torch.float8_e4m3fn),
    ],
)
def test_a_layer_moves_to_the_npu_with_its_maps(
    mode: str, family: str, stored: torch.dtype
) -> None:
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
    with device_family(family):
        layer = layer.to("npu")
        layer.process_weights_after_loading()
        assert layer.w2.dtype == layer.w13.dtype == stored
        assert layer.w2_scale.dtype == (torch.bfloat16 if stored == torch.int8 else torch.uint8)
        load = torch.zeros(3, dtype=torch.int32, device="npu")
        layer.init_eplb(load)
        assert layer.to_physical(ids.to("npu")).cpu().tolist() == ids.tolist()
        assert load.cpu().tolist() == [2, 2, 2]
        before = counters()
        result = layer(x.to("npu"), GroupList(list_.values.to("npu"), list_.kind))
        assert (counters() - before).device_to_host == 0
        actual = result.cpu()
        assert relative_error(actual, expected) < FORMAT_ERRORS[mode] / 5
        assert layer.rebalance((2, 0, 1), AloneExchange()) == 3
        assert layer.to_physical(ids.to("npu")).cpu().tolist() == [[1, 0], [2, 1], [0, 2]]
        moved = torch.cat([x[3:], x[:3]]).to("npu")
        counts = GroupList(torch.tensor([5, 3, 0], device="npu"), GroupListKind.COUNTS)
        again = layer(moved, counts).cpu()
    assert torch.equal(torch.cat([again[5:], again[:5]]), actual)


def test_a_captured_step_follows_a_rebalance() -> None:
    """The graph reads maps and weights where they lie, so a replay after a rebalance is right."""
    layer = AscendRoutedExperts(3, 128, 64, torch.bfloat16)
    for expert in range(3):
        for part, shape in (("w1", (64, 128)), ("w3", (64, 128)), ("w2", (128, 64))):
            layer.load_expert(expert, part, (torch.randn(shape) / 8).bfloat16())
    layer.process_weights_after_loading()
    layer = layer.to("npu")
    layer.init_eplb(torch.zeros(3, dtype=torch.int32, device="npu"))
    x = torch.randn(6, 128).bfloat16().to("npu")
    ids = torch.tensor([[0], [2], [2], [1], [0], [2]], dtype=torch.int32, device="npu")

    def step() -> torch.Tensor:
        places = layer.to_physical(ids).flatten().long()
        order = places.argsort(stable=True)
        counts = torch.zeros(3, dtype=torch.int64, device="npu")
        counts.index_add_(0, places, torch.ones_like(places))
        rows = layer(x.index_select(0, order), GroupList(counts, GroupListKind.COUNTS))
        return torch.empty_like(rows).index_copy_(0, order, rows)

    with device_family("A2"):
        expected = step().cpu()
        graph = torch.npu.NPUGraph()
        with torch.npu.graph(graph):
            result = step()
        for table in ((0, 1, 2), (2, 0, 1), (1, 2, 0)):
            layer.rebalance(table, AloneExchange())
            result.zero_()
            graph.replay()
            assert torch.equal(result.cpu(), expected)
