"""Placements, maps, load and plans of expert-parallel load balancing."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch
from ascend_fused_moe.eplb import (
    AloneExchange,
    EplbExpertTensorList,
    EplbLayer,
    EplbLayerMaps,
    EplbPlacementConfig,
    ExpertLoadWindow,
    ExpertPlacement,
    RebalanceError,
    build_expert_replica_routing_table,
    imbalance,
    initial_placement,
    plan_rebalance,
    rebalance_layer,
    routing_period,
)
from ascend_fused_moe.expert_partition import ExpertPartition
from ascend_fused_moe.group_list import GroupList, GroupListKind
from ascend_fused_moe.mlp import MoEWeights, build_mlp_compute_input, unified_apply_mlp
from ascend_ops_core import InvalidInputError
from hypothesis import given, settings
from hypothesis import strategies as st


@pytest.mark.parametrize("ranks", [1, 2, 3, 4, 6])
@pytest.mark.parametrize("experts", [1, 2, 7, 128])
def test_experts_that_do_not_divide(experts: int, ranks: int) -> None:
    """Bug case 5: each exactly once, room for equally many on each rank, empty places unused."""
    placement = initial_placement(experts, ranks)
    each, more = divmod(experts, ranks)
    assert placement.capacity == -(-experts // ranks)
    held = [[e for e in placement.on_rank(r) if e >= 0] for r in range(ranks)]
    assert [len(one) for one in held] == [each + (r < more) for r in range(ranks)]
    assert list(itertools.chain(*held)) == list(range(experts))
    maps = EplbLayerMaps(placement, ranks - 1)
    ids = torch.arange(experts)[None].expand(5, -1)
    places = maps.to_physical(ids)
    assert (maps.phy2log[places] == ids).all()
    local = maps.expert_map
    for expert in range(experts):
        rank, place = divmod(placement.replicas[expert][0], placement.capacity)
        assert local[expert] == (place if rank == ranks - 1 else -1)
    partition = ExpertPartition(experts, ranks)
    assert partition.capacity == placement.capacity
    assert torch.equal(partition.physical_ids(), placement.logical_to_physical()[:, 0].long())
    if (experts, ranks) == (128, 6):
        assert [len(one) for one in held] == [22, 22, 21, 21, 21, 21]


def test_redundant_experts_share_the_load() -> None:
    """Each of n replicas gets every n-th token, whatever the others have."""
    placement = initial_placement(4, 3, redundant=5)
    assert placement.replica_counts().tolist() == [3, 2, 2, 2]
    maps = EplbLayerMaps(placement, 1)
    load = torch.zeros(placement.places, dtype=torch.int32)
    ids = torch.arange(4)[None].repeat(60, 1)
    places = maps.to_physical(ids, load)
    assert (maps.phy2log[places] == ids).all()
    for expert in range(4):
        counts = [int(load[place]) for place in placement.replicas[expert]]
        assert counts == [60 // len(counts)] * len(counts)
    assert load.sum() == ids.numel()
    assert maps.log2phy[0].tolist() == list(placement.replicas[0])
    assert maps.log2phy[1].tolist() == [*placement.replicas[1], -1]


def test_periods() -> None:
    """Every number of replicas comes out even, up to a length; then within one token."""
    assert [routing_period(n) for n in (1, 2, 3, 4, 8, 9, 100)] == [1, 2, 6, 12, 840, 840, 840]
    placement = initial_placement(2, 3, redundant=4)
    table = build_expert_replica_routing_table(placement, 4)
    for expert in range(2):
        shares = [int((table[expert] == place).sum()) for place in placement.replicas[expert]]
        assert sorted(shares) == [1, 1, 2]
    with pytest.raises(InvalidInputError, match=r"period=2.*at least 3"):
        build_expert_replica_routing_table(placement, 2)


def test_every_problem_of_a_table_is_named() -> None:
    with pytest.raises(InvalidInputError) as caught:
        ExpertPlacement((0, 0, 9, 1, -1, -2), 4, 2)
    message = str(caught.value)
    for part in (
        "experts lie below 4, but for 9 in place 2, -2 in place 5",
        "no place holds expert 2, 3",
        "rank 0 holds expert 0 twice",
        "Nothing was changed",
    ):
        assert part in message
    with pytest.raises(InvalidInputError, match="5 places do not divide among 2 ranks"):
        ExpertPlacement((0, 1, 2, 3, 0), 4, 2)
    with pytest.raises(InvalidInputError, match=r"9 redundant experts of 4 on 3 ranks.*at most 8"):
        initial_placement(4, 3, redundant=9)


def _map_of(rows: list[list[int]], **changes: Any) -> dict[str, Any]:
    devices = [{"device_id": i, "device_expert": row} for i, row in enumerate(rows)]
    layer = {"layer_id": 3, "device_count": len(rows), "device_list": devices} | changes
    return {"moe_layer_count": 1, "layer_list": [layer]}


def test_static_expert_maps() -> None:
    content = _map_of([[0, 1, 2], [3, 0, 1]])
    config = EplbPlacementConfig.from_expert_map(content, experts=4, ranks=2)
    assert config.redundant == 2
    assert config.placement(3).physical_to_logical == (0, 1, 2, 3, 0, 1)
    assert config.placement(4) == initial_placement(4, 2, 2)
    bad = {"layer_list": content["layer_list"] + _map_of([[0, 1], [2, 2]])["layer_list"]}
    bad["layer_list"] += _map_of([[0, 1], [2]], layer_id=7)["layer_list"]
    bad["layer_list"] += _map_of([[0, 1, 2, 3]], layer_id=8)["layer_list"]
    with pytest.raises(InvalidInputError) as caught:
        EplbPlacementConfig.from_expert_map(bad, experts=4, ranks=2)
    for part in (
        "layer 3: no place holds expert 3",
        "layer 3: rank 1 holds expert 2 twice",
        "layer 7: devices hold different numbers",
        r"layer 8: devices [0] are not 0 to 1",
    ):
        assert part in str(caught.value)
    with pytest.raises(InvalidInputError, match="no layer_list"):
        EplbPlacementConfig.from_expert_map({}, experts=4, ranks=2)


@pytest.mark.parametrize("multistage", [True, False])
def test_load_of_the_last_steps(multistage: bool) -> None:
    window = ExpertLoadWindow(2, 3, 4, multistage=multistage)
    counters = window.of_layer(1)
    assert window.steps == 0
    assert window.total().eq(0).all()
    for step in range(1, 7):
        counters[2] += step
        window.advance()
        assert counters[2] == 0
    if multistage:
        assert window.per_step()[:, 1, 2].tolist() == [3, 4, 5, 6]
        assert (window.steps, int(window.total()[1, 2])) == (4, 18)
    else:
        assert (window.steps, int(window.total()[1, 2])) == (2, 11)
        with pytest.raises(InvalidInputError, match="only the sum"):
            window.per_step()
    assert window.total()[0].eq(0).all()
    window.clear()
    assert window.total().eq(0).all()


def test_load_of_experts_adds_their_replicas() -> None:
    placement = ExpertPlacement((0, 1, 2, 0, -1, 1), 3, 2)
    load = torch.tensor([[1, 2, 3, 4, 99, 5], [0, 0, 1, 0, 0, 0]])
    of_experts = ExpertLoadWindow.of_experts(load, placement)
    assert of_experts.tolist() == [[5, 7, 3], [0, 0, 1]]
    with pytest.raises(InvalidInputError, match=r"load of 5 places.*has 6"):
        ExpertLoadWindow.of_experts(load[:, 1:], placement)


@given(st.data())
@settings(max_examples=60)
def test_plans_are_placements_and_never_worse(data: st.DataObject) -> None:
    experts, ranks = data.draw(st.integers(1, 12)), data.draw(st.integers(1, 5))
    redundant = data.draw(st.integers(0, min(6, experts * (ranks - 1))))
    current = initial_placement(experts, ranks, redundant)
    for _ in range(2):
        load = data.draw(st.lists(st.integers(0, 50), min_size=experts, max_size=experts))
        plan = plan_rebalance(current, load)
        assert plan.placement.places == current.places
        filled = [sum(e >= 0 for e in current.on_rank(r)) for r in range(ranks)]
        assert filled == [sum(e >= 0 for e in plan.placement.on_rank(r)) for r in range(ranks)]
        assert plan.after == imbalance(plan.placement, load) <= plan.before
        assert plan.moved == 0 or plan.after < plan.before
        current = plan.placement


def test_a_hot_expert_gets_replicas() -> None:
    current = initial_placement(8, 4, redundant=4)
    plan = plan_rebalance(current, [100, 1, 1, 1, 1, 1, 1, 1])
    assert len(plan.placement.replicas[0]) == 4
    assert plan.after < 1.1 < plan.before
    assert plan_rebalance(plan.placement, [100, 1, 1, 1, 1, 1, 1, 1]).moved == 0
    limited = plan_rebalance(current, [100, 1, 1, 1, 1, 1, 1, 1], max_replicas=3)
    assert len(limited.placement.replicas[0]) == 3


@pytest.mark.parametrize(
    ("load", "most", "message"),
    [
        ([1.0] * 3, None, "loads of 3 experts.*each of 4"),
        ([1.0, -1.0, 0.0, 0.0], None, "at least 0"),
        ([float("nan"), 1.0, 0.0, 0.0], None, "finite"),
        ([1.0] * 4, 1, "max_replicas=1.*6 places are filled"),
    ],
)
def test_bad_loads(load: list[float], most: int | None, message: str) -> None:
    with pytest.raises(InvalidInputError, match=message):
        plan_rebalance(initial_placement(4, 2, redundant=2), load, most)


class Failing(EplbExpertTensorList):
    """Weights of which the n-th store fails in the midst of its copy."""

    left = 10**9

    def store(self, place: int, value: torch.Tensor) -> None:
        self.left -= 1
        if self.left == 0:
            self[place].view(-1)[:1].copy_(value.view(-1)[:1])
            raise RuntimeError("the device is gone")
        super().store(place, value)


def _layer(experts: int = 6) -> tuple[EplbLayer, MoEWeights]:
    """All ranks' places in one: integers, so that sums are exact in any order."""
    maps = EplbLayerMaps(initial_placement(experts, 1), 0, max_replicas=1)
    weights = MoEWeights(
        torch.randint(-2, 3, (experts, 8, 6)).float(),
        torch.randint(-2, 3, (experts, 6, 4)).float(),
        w13_bias=torch.randint(-2, 3, (experts, 8)).float(),
    )
    names = "w13", "w2", "w13_bias"
    lists = {name: Failing(getattr(weights, name), name) for name in names}
    return EplbLayer(maps, lists), weights


def _outputs(maps: EplbLayerMaps, weights: MoEWeights, x: torch.Tensor) -> torch.Tensor:
    """Each token through each logical expert in turn."""
    ids = torch.arange(maps.placement.experts).repeat(len(x), 1)
    places = maps.to_physical(ids).flatten()
    order = places.argsort(stable=True)
    counts = torch.bincount(places, minlength=maps.placement.places)
    rows = x.repeat_interleave(maps.placement.experts, 0)[order]
    groups = GroupList(counts, GroupListKind.COUNTS)
    out = torch.empty(len(rows), x.shape[1])
    out[order] = unified_apply_mlp(build_mlp_compute_input(rows, groups, weights))
    return out


def _state(layer: EplbLayer) -> list[torch.Tensor]:
    maps = layer.maps
    tables = [maps.routing_table, maps.expert_map, maps.log2phy, maps.replica_counts, maps.phy2log]
    return [one.clone() for one in tables] + [
        torch.stack([weights[i] for i in range(len(weights))]) for weights in layer.weights.values()
    ]


NEW = (3, 1, 0, 5, 2, 4)


def test_a_rebalance_moves_maps_and_weights_and_keeps_the_outputs() -> None:
    layer, weights = _layer()
    x = torch.randint(-3, 4, (5, 6)).float()
    before, w13 = _outputs(layer.maps, weights, x), weights.w13.clone()
    addresses = [one.data_ptr() for one in (layer.maps.routing_table, weights.w13)]
    assert rebalance_layer(layer, NEW, AloneExchange()) == 5
    assert torch.equal(weights.w13, w13[list(NEW)])
    assert layer.maps.phy2log.tolist() == list(NEW)
    assert torch.equal(_outputs(layer.maps, weights, x), before)
    assert [one.data_ptr() for one in (layer.maps.routing_table, weights.w13)] == addresses


@pytest.mark.parametrize("name", ["w13", "w2", "w13_bias"])
@pytest.mark.parametrize("failing", [1, 3, 5])
def test_a_rebalance_that_fails_leaves_everything_as_it_was(name: str, failing: int) -> None:
    layer, weights = _layer()
    x = torch.randint(-3, 4, (5, 6)).float()
    before, outputs = _state(layer), _outputs(layer.maps, weights, x)
    layer.weights[name].left = failing  # type: ignore[attr-defined]
    with pytest.raises(RebalanceError, match="rank 0: RuntimeError: the device is gone"):
        rebalance_layer(layer, NEW, AloneExchange())
    assert all(torch.equal(one, other) for one, other in zip(_state(layer), before, strict=True))
    assert torch.equal(_outputs(layer.maps, weights, x), outputs)
    assert rebalance_layer(layer, NEW, AloneExchange()) == 5


def test_a_failure_in_the_maps_takes_the_weights_back(monkeypatch: pytest.MonkeyPatch) -> None:
    layer, _ = _layer()
    before = _state(layer)
    real, calls = torch.Tensor.copy_, itertools.count()
    table = layer.maps.log2phy

    def copy(self: torch.Tensor, *args: Any) -> torch.Tensor:
        if self is table and next(calls) == 0:
            raise RuntimeError("half of the maps")
        return real(self, *args)

    monkeypatch.setattr(torch.Tensor, "copy_", copy)
    with pytest.raises(RebalanceError, match="half of the maps"):
        rebalance_layer(layer, NEW, AloneExchange())
    assert all(torch.equal(one, other) for one, other in zip(_state(layer), before, strict=True))


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ((3, 1, 0, 5, 2, 2), "no place holds expert 4; rank 0 holds expert 2 twice"),
        ((3, 1, 0, 5, 2, 6), "6 in place 5"),
        ((0, 1, 2, 3, 4, 5, -1), "it has 7 places, the layer 6"),
        (initial_placement(5, 1), "it has 5 experts, the layer 6"),
    ],
)
def test_a_table_that_does_not_fit_is_refused_whole(table: Any, message: str) -> None:
    layer, _ = _layer()
    before = _state(layer)
    with pytest.raises(InvalidInputError, match=message):
        rebalance_layer(layer, table, AloneExchange())
    assert all(torch.equal(one, other) for one, other in zip(_state(layer), before, strict=True))


def test_tables_have_room_for_replicas() -> None:
    maps = EplbLayerMaps(initial_placement(3, 2, redundant=1), 0, max_replicas=2)
    assert maps.routing_table.shape == (3, 2)
    with pytest.raises(InvalidInputError, match=r"2 replicas of an expert.*max_replicas is 1"):
        EplbLayerMaps(initial_placement(3, 2, redundant=1), 0, max_replicas=1)
    with pytest.raises(InvalidInputError, match=r"rank 2.*2 ranks"):
        EplbLayerMaps(initial_placement(3, 2), 2)


def test_weights_one_by_one() -> None:
    parts = [torch.zeros(2, 3) for _ in range(4)]
    weights = EplbExpertTensorList(parts, "w2")
    assert (weights.shape, weights.dtype, len(weights)) == ((4, 2, 3), torch.float32, 4)
    weights.store(1, torch.ones(2, 3))
    assert parts[1].eq(1).all()
    assert [one.sum() for one in weights[:2]] == [0, 6]
    with pytest.raises(InvalidInputError, match="'w2' of 2 different forms"):
        EplbExpertTensorList([torch.zeros(2), torch.zeros(3)], "w2")
    with pytest.raises(InvalidInputError, match=r"weights \['w2'\].*3 places"):
        EplbLayer(EplbLayerMaps(initial_placement(3, 1), 0), {"w2": weights})
