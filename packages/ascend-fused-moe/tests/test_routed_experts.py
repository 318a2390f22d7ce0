"""The life cycle of a rank's expert weights: created, loaded, checked, used, moved."""

from __future__ import annotations

import re
from typing import Any

import pytest
import torch
from ascend_fused_moe.eplb import AloneExchange, ExpertPlacement, initial_placement
from ascend_fused_moe.group_list import GroupList, GroupListKind
from ascend_fused_moe.layers import routed_experts
from ascend_fused_moe.layers.experts_methods import (
    AscendQuantizedFusedMoEMethod,
    AscendUnquantizedFusedMoEMethod,
)
from ascend_fused_moe.layers.routed_experts import AscendRoutedExperts
from ascend_fused_moe.mlp import Activation, ActivationKind
from ascend_fused_moe.quant_params import MoEQuantParams, QuantMode, build_quant_params
from ascend_fused_moe.testing.quantized import FORMAT_ERRORS, quantized_weight
from ascend_ops_core import InvalidInputError
from ascend_ops_core.testing import assert_close

EXPERTS, HIDDEN, INTER = 5, 128, 256


def checkpoint(
    mode: str = "none", *, bias: bool = False, powers: bool = False
) -> list[dict[str, torch.Tensor]]:
    """The tensors of each expert, as a checkpoint names them."""
    experts = []
    for _ in range(EXPERTS):
        parts = {}
        shapes = {"w1": (INTER, HIDDEN), "w3": (INTER, HIDDEN), "w2": (HIDDEN, INTER)}
        for name, (outputs, columns) in shapes.items():
            value = torch.randn(1, outputs, columns) / columns**0.5
            if mode == "none":
                parts[name] = value[0]
            else:
                values, scale = quantized_weight(
                    value, build_quant_params(mode).weights, powers=powers
                )
                parts[name], parts[f"{name}_scale"] = values[0], scale[0]
            if bias:
                parts[f"{name}_bias"] = torch.randn(outputs)
        experts.append(parts)
    return experts


def layer_of(mode: str = "none", **options: Any) -> AscendRoutedExperts:
    quant = build_quant_params(mode)
    return AscendRoutedExperts(EXPERTS, HIDDEN, INTER, torch.float32, quant=quant, **options)


def loaded(
    layer: AscendRoutedExperts, experts: list[dict[str, torch.Tensor]]
) -> AscendRoutedExperts:
    for expert, parts in enumerate(experts):
        for part, value in parts.items():
            held = layer.load_expert(expert, part, value)
            assert held == (layer.ascend_expert_map[expert] >= 0)
    layer.process_weights_after_loading()
    return layer


@pytest.mark.parametrize("mode", ["none", "w8a8"])
def test_loaded_weights_are_moved_to_huge_pages(mode: str, monkeypatch: pytest.MonkeyPatch) -> None:
    moved: list[int] = []
    monkeypatch.setattr(
        routed_experts,
        "move_to_huge_pages",
        lambda tensors: moved.extend(one.data_ptr() for one in tensors),
    )
    layer = loaded(layer_of(mode), checkpoint(mode))
    assert moved == [one.data_ptr() for one in layer.parameters()]


def run(layer: AscendRoutedExperts, x: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
    """The sum over each token's experts of what this rank has of it."""
    places = layer.to_physical(ids)
    first = layer.maps.rank * layer.maps.placement.capacity
    local = (places - first).flatten()
    mine = ((local >= 0) & (local < layer.maps.placement.capacity)).nonzero().flatten()
    order = mine[local[mine].argsort(stable=True)]
    counts = torch.bincount(local[mine], minlength=layer.maps.placement.capacity)
    rows = layer(x[order // ids.shape[1]], GroupList(counts, GroupListKind.COUNTS))
    return torch.zeros(x.shape).index_add_(0, order // ids.shape[1], rows)


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize(
    ("ep", "tp", "redundant"), [(1, 1, 0), (3, 1, 0), (2, 2, 0), (3, 1, 4), (4, 2, 3), (6, 1, 0)]
)
def test_ranks_add_up_to_the_whole_layer(ep: int, tp: int, redundant: int, bias: bool) -> None:
    """Experts that do not divide, replicas, places without an expert, slices of experts."""
    experts = checkpoint(bias=bias)
    x = torch.randn(9, HIDDEN)
    ids = torch.stack([torch.randperm(EXPERTS)[:3] for _ in range(9)])
    whole = run(loaded(layer_of(bias=bias), experts), x, ids)
    placement = initial_placement(EXPERTS, ep, redundant)
    parts = []
    for rank in range(ep):
        for slice_ in range(tp):
            layer = layer_of(
                bias=bias,
                ep_rank=rank,
                ep_ranks=ep,
                tp_rank=slice_,
                tp_ranks=tp,
                placement=placement,
            )
            parts.append(run(loaded(layer, experts), x, ids))
    assert_close(torch.stack(parts).sum(0), whole, scale=4)
    expected = torch.zeros_like(x)
    for t in range(9):
        for expert in ids[t].tolist():
            e = experts[expert]
            none = torch.zeros(())
            gate = e["w1"] @ x[t] + e.get("w1_bias", none)
            up = e["w3"] @ x[t] + e.get("w3_bias", none)
            expected[t] += e["w2"] @ (gate * gate.sigmoid() * up) + e.get("w2_bias", none)
    assert_close(whole, expected, scale=8)


@pytest.mark.parametrize("mode", FORMAT_ERRORS)
@pytest.mark.parametrize("tp", [1, 2])
def test_quantised_parts_lie_where_they_belong(mode: str, tp: int) -> None:
    experts = checkpoint(mode)
    for rank in range(tp):
        layer = loaded(layer_of(mode, tp_rank=rank, tp_ranks=tp, ep_rank=1, ep_ranks=2), experts)
        for place, expert in enumerate(layer.maps.placement.on_rank(1)):
            if expert < 0:
                continue
            parts = experts[expert]
            for suffix in ("", "_scale"):
                w13 = torch.cat([parts[f"{p}{suffix}"].chunk(tp)[rank] for p in ("w1", "w3")])
                assert torch.equal(getattr(layer, f"w13{suffix}")[place].float(), w13.float())
                w2 = parts[f"w2{suffix}"]
                w2 = w2 if w2.dim() == 1 else w2.chunk(tp, 1)[rank]
                assert torch.equal(getattr(layer, f"w2{suffix}")[place].float(), w2.float())
        groups = GroupList(torch.tensor([4, 0, 3]), GroupListKind.COUNTS)
        assert layer(torch.randn(7, HIDDEN), groups).isfinite().all()


def test_scales_stored_as_powers_of_two() -> None:
    experts = checkpoint("fp8_block", powers=True)
    for parts in experts:
        for name in ("w1_scale", "w3_scale", "w2_scale"):
            parts[name] = parts[name].view(torch.float8_e8m0fnu)
    layer = loaded(layer_of("fp8_block", scale_dtype=torch.uint8), experts)
    assert layer.w13_scale.dtype == torch.uint8
    assert torch.equal(layer.w2_scale[3], experts[3]["w2_scale"].view(torch.uint8))


def test_channels_that_alternate() -> None:
    fused, bias = torch.randn(2 * INTER, HIDDEN), torch.randn(2 * INTER)
    activation = Activation(ActivationKind.SWIGLU_OAI, limit=7.0)
    for rank in range(2):
        layer = layer_of(bias=True, activation=activation, tp_rank=rank, tp_ranks=2)
        layer.load_expert(0, "w13", fused)
        layer.load_expert(0, "w1_bias", bias[0::2])
        layer.load_expert(0, "w3_bias", bias[1::2])
        layer.load_expert(0, "w2_bias", torch.ones(HIDDEN))
        assert torch.equal(layer.w13[0], fused[rank * INTER : (rank + 1) * INTER])
        assert torch.equal(layer.w13_bias[0], bias[rank * INTER : (rank + 1) * INTER])
        assert layer.w2_bias[0].eq(1 - rank).all()
    with pytest.raises(InvalidInputError, match=r"fp8_block.*swiglu_oai.*alternate"):
        layer_of("fp8_block", activation=activation)


def test_everything_that_is_missing_is_named() -> None:
    layer = layer_of("w8a8", ep_rank=1, ep_ranks=3)
    experts = checkpoint("w8a8")
    for expert, part in ((2, "w1"), (3, "w2_scale")):
        del experts[expert][part]
    with pytest.raises(InvalidInputError) as caught:
        loaded(layer, experts)
    assert "2 tensors" in str(caught.value)
    assert "w1 of expert 2, w2_scale of expert 3" in str(caught.value)


@pytest.mark.parametrize(
    ("part", "value", "message"),
    [
        ("w4", torch.zeros(1), "part 'w4'.*parts are w1, w3, w13, w2"),
        ("w1_zero", torch.zeros(1), "part 'w1_zero'"),
        ("w1_scale", torch.zeros(INTER), "part 'w1_scale' of expert 0.*has w13, w2"),
        (
            "w1",
            torch.zeros(HIDDEN, INTER),
            r"w1 of torch.float32 and shape \[128, 256\].*\[256, 128",
        ),
        ("w13", torch.zeros(INTER, HIDDEN), r"\[512, 128\]"),
        ("w2", torch.zeros(HIDDEN, INTER).half(), "w2 of torch.float16.*torch.float32"),
    ],
)
def test_a_bad_tensor_changes_nothing(part: str, value: torch.Tensor, message: str) -> None:
    layer = layer_of()
    with pytest.raises(InvalidInputError, match=message):
        layer.load_expert(0, part, value)
    assert all(one.eq(0).all() for one in layer.parameters())
    with pytest.raises(InvalidInputError, match=r"expert 5.*has 5"):
        layer.load_expert(5, "w1", torch.zeros(INTER, HIDDEN))


@pytest.mark.parametrize(
    ("mode", "options", "message"),
    [
        ("none", {"tp_ranks": 3}, "intermediate_size=256 on 3 tensor-parallel ranks.*units of 1"),
        ("fp8_block", {"tp_ranks": 4}, "on 4 tensor-parallel.*units of 128"),
        ("mxfp4", {"tp_ranks": 16}, "on 16 tensor-parallel.*units of 32"),
        ("none", {"tp_ranks": 2, "tp_rank": 2}, "tp_rank=2.*2 ranks"),
        ("w8a8", {"scale_dtype": torch.uint8}, "scales of torch.uint8 in mode 'w8a8'"),
        ("none", {"placement": initial_placement(4, 1)}, "4 experts on 1 ranks.*5 on 1"),
    ],
)
def test_layers_that_cannot_be(mode: str, options: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidInputError, match=message):
        layer_of(mode, **options)


def test_maps_change_before_weights_are_loaded_or_with_them() -> None:
    layer = layer_of()
    table = ExpertPlacement((4, 2, 0, 1, 3), EXPERTS, 1)
    layer.update_expert_map(table)
    assert layer.ascend_expert_map.tolist() == [2, 3, 1, 4, 0]
    experts = checkpoint()
    loaded(layer, experts)
    assert torch.equal(layer.w2[0], experts[4]["w2"])
    with pytest.raises(InvalidInputError, match=re.escape("Use rebalance()")):
        layer.update_expert_map(initial_placement(EXPERTS, 1))
    x, ids = torch.randn(6, HIDDEN), torch.randint(0, EXPERTS, (6, 1))
    load = torch.zeros(EXPERTS, dtype=torch.int32)
    layer.init_eplb(load)
    before = run(layer, x, ids)
    assert torch.equal(load, torch.bincount(layer.ascend_expert_map[ids.flatten()], minlength=5))
    assert layer.rebalance((0, 1, 2, 3, 4), AloneExchange()) == 5
    assert torch.equal(layer.w2[4], experts[4]["w2"])
    assert_close(run(layer, x, ids), before)
    with pytest.raises(InvalidInputError, match=r"load of shape \[4\].*5 places"):
        layer.init_eplb(torch.zeros(4, dtype=torch.int32))


def test_views_are_of_the_weights() -> None:
    layer = layer_of("mxfp8", bias=True, ep_ranks=2)
    views = layer.get_expert_weights()
    assert [one.shape[0] for one in views] == [3] * len(list(layer.parameters()))
    assert {one.data_ptr() for one in views} == {one.data_ptr() for one in layer.parameters()}
    named = layer.get_eplb_weight_views()
    assert set(named) == {"w13", "w13_scale", "w13_bias", "w2", "w2_scale", "w2_bias"}
    named["w2_scale"].store(1, torch.full(layer.w2_scale.shape[1:], 7, dtype=torch.uint8))
    assert layer.w2_scale[1].eq(7).all()
    assert layer.quant_type is QuantMode.MXFP8
    assert layer.get_log2phy_map().shape == (EXPERTS, 2)


def test_methods() -> None:
    method = AscendUnquantizedFusedMoEMethod()
    assert not method.is_monolithic
    with pytest.raises(InvalidInputError, match="Use AscendUnquantizedFusedMoEMethod"):
        AscendQuantizedFusedMoEMethod(MoEQuantParams())


@pytest.mark.parametrize("tokens", [0, 1, 7])
@pytest.mark.parametrize("mode", ["none", "w8a8"])
@pytest.mark.parametrize("shared", [False, True], ids=["routed", "shared"])
@pytest.mark.parametrize("kind", [ActivationKind.SWIGLU, ActivationKind.SWIGLU_STEP])
def test_tokens_are_summed_over_their_experts(
    tokens: int, mode: str, shared: bool, kind: ActivationKind
) -> None:
    """Each token visits its experts one by one, a shared one with weight 1."""
    activation = Activation(kind, limit=0.75)
    layer = loaded(layer_of(mode, activation=activation), checkpoint(mode))
    x = torch.randn(tokens, HIDDEN)
    weights = torch.rand(tokens, 3)
    ids = torch.stack([torch.randperm(EXPERTS)[:3] for _ in range(tokens)] or [ids_of_none(3)])
    ids = ids[:tokens]
    more = (torch.randn(64, HIDDEN) / 11, torch.randn(HIDDEN, 32) / 6) if shared else None
    expected = torch.zeros(tokens, HIDDEN)
    for token in range(tokens):
        row = x[token : token + 1]
        for weight, expert in zip(weights[token], ids[token].tolist(), strict=True):
            counts = torch.zeros(EXPERTS, dtype=torch.int64)
            counts[expert] = 1
            expected[token] += weight * layer(row, GroupList(counts, GroupListKind.COUNTS))[0]
        if more is not None:
            expected[token] += (activation(row @ more[0].T) @ more[1].T)[0]
    got = layer.forward_tokens(x, weights, ids, more)
    assert_close(got, expected, scale=2)


def ids_of_none(top_k: int) -> torch.Tensor:
    return torch.zeros(top_k, dtype=torch.int64)


def test_maps_lie_where_the_weights_do() -> None:
    """Also where a context, and not a move, decides on the device."""
    with torch.device("meta"):
        layer = layer_of()
    assert layer.w13.device.type == "meta"
    assert layer.maps.routing_table.device.type == "meta"


@pytest.mark.parametrize("own", [(0, 4), (4, 7), (7, 7)], ids=str)
@pytest.mark.parametrize("unpadded", [0, 2, 9])
def test_a_rank_counts_the_tokens_of_its_replica(own: tuple[int, int], unpadded: int) -> None:
    """Tokens go where they go without counting; padding of the replica is left out."""
    layer = layer_of(placement=initial_placement(EXPERTS, 2, 3), ep_ranks=2)
    ids = torch.randint(0, EXPERTS, (7, 2))
    places = layer.to_physical(ids)
    load = torch.zeros(layer.maps.placement.places, dtype=torch.int32)
    layer.init_eplb(load, torch.tensor([unpadded], dtype=torch.int32))
    assert torch.equal(layer.to_physical(ids, own=own), places)
    counted = places[own[0] : min(own[1], own[0] + unpadded)]
    assert load.tolist() == torch.bincount(counted.flatten(), minlength=len(load)).tolist()
