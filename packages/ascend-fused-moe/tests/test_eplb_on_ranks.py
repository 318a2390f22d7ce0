"""Rebalances between processes over gloo; they are started once for all of them."""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from ascend_fused_moe.communication import AllGatherCommImpl, AlltoAllCommImpl
from ascend_fused_moe.eplb import (
    EplbExpertTensorList,
    EplbLayer,
    EplbLayerMaps,
    ExpertLoadWindow,
    ExpertPlacement,
    ProcessExchange,
    RebalanceError,
    initial_placement,
    plan_rebalance,
    rebalance_layer,
)
from ascend_fused_moe.expert_partition import ExpertPartition
from ascend_fused_moe.groups import parallel_groups
from ascend_fused_moe.layers.routed_experts import AscendRoutedExperts
from ascend_fused_moe.routers import AscendFusedTopKRouter
from ascend_fused_moe.runner import AscendMoERunner
from ascend_ops_core import InvalidInputError
from ascend_ops_core.testing import assert_close
from torch import distributed

RANKS, EXPERTS, REDUNDANT = 3, 7, 4


def _weights(expert: int) -> dict[str, torch.Tensor]:
    """What an expert's weights are; the empty place has zeros."""
    values = torch.arange(6.0).view(2, 3) + 10 * expert
    return {
        "w13": values.bfloat16(),
        "w2": values.to(torch.float8_e4m3fn),
        "w2_scale": torch.full((3,), expert + 1, dtype=torch.uint8),
    }


class _Failing(EplbExpertTensorList):
    fails = dies = False

    def store(self, place: int, value: torch.Tensor) -> None:
        super().store(place, value)
        if self.fails:
            raise RuntimeError("the device is gone")
        if self.dies:
            os._exit(0)


def _layer(rank: int) -> EplbLayer:
    placement = initial_placement(EXPERTS, RANKS, REDUNDANT)
    held = [_weights(max(expert, 0)) for expert in placement.on_rank(rank)]
    # Columns before rows, as some weights lie on NPUs.
    for one in held:
        one["w13"] = one["w13"].t().contiguous().t()
    weights = {name: _Failing([one[name] for one in held], name) for name in held[0]}
    return EplbLayer(EplbLayerMaps(placement, rank), weights)


def _bytes(layer: EplbLayer) -> list[bytes]:
    maps = layer.maps
    tables = [maps.routing_table, maps.expert_map, maps.log2phy, maps.replica_counts, maps.phy2log]
    parts = [part for weights in layer.weights.values() for part in weights]
    return [one.contiguous().view(torch.uint8).numpy().tobytes() for one in tables + parts]


def _assert_holds(layer: EplbLayer, placement: ExpertPlacement, rank: int) -> None:
    assert layer.maps.placement == placement
    assert layer.maps.phy2log.tolist() == list(placement.physical_to_logical)
    for place, expert in enumerate(placement.on_rank(rank)):
        for name, value in _weights(expert).items() if expert >= 0 else ():
            assert torch.equal(layer.weights[name][place].float(), value.float()), (name, place)


def moves(rank: int, exchange: ProcessExchange) -> int:
    """One plan after the other, each from what the last one left."""
    layer, overwritten = _layer(rank), 0
    for load in ([90, 1, 1, 1, 1, 1, 1], [1, 1, 1, 1, 1, 60, 60], [5, 9, 1, 7, 3, 2, 8]):
        plan = plan_rebalance(layer.maps.placement, load)
        overwritten += rebalance_layer(layer, plan.placement, exchange)
        _assert_holds(layer, plan.placement, rank)
    return overwritten


def failure(rank: int, exchange: ProcessExchange) -> str:
    """Rank 1 fails in the midst of overwriting; all go back."""
    layer = _layer(rank)
    before, old = _bytes(layer), layer.maps.placement
    plan = plan_rebalance(old, [90, 1, 1, 1, 1, 1, 1])
    if rank == 1:
        layer.weights["w2"].fails = True  # type: ignore[attr-defined]
    with pytest.raises(RebalanceError) as caught:
        rebalance_layer(layer, plan.placement, exchange)
    assert _bytes(layer) == before
    assert layer.maps.placement == old
    layer.weights["w2"].fails = False  # type: ignore[attr-defined]
    rebalance_layer(layer, plan.placement, exchange)
    _assert_holds(layer, plan.placement, rank)
    return str(caught.value)


def wrong_on_one(rank: int, exchange: ProcessExchange) -> str:
    """A table that one rank has wrong is refused on all."""
    layer = _layer(rank)
    before = _bytes(layer)
    table = list(
        plan_rebalance(layer.maps.placement, [90, 1, 1, 1, 1, 1, 1]).placement.physical_to_logical
    )
    if rank == 2:
        table[0] = EXPERTS
    with pytest.raises(InvalidInputError) as caught:
        rebalance_layer(layer, table, exchange)
    assert _bytes(layer) == before
    return str(caught.value)


def different(rank: int, exchange: ProcessExchange) -> str:
    """Tables that are right and not the same."""
    layer = _layer(rank)
    before = _bytes(layer)
    load = [90, 1, 1, 1, 1, 1, 1] if rank else [1, 1, 1, 1, 1, 1, 90]
    with pytest.raises(InvalidInputError) as caught:
        rebalance_layer(layer, plan_rebalance(layer.maps.placement, load).placement, exchange)
    assert _bytes(layer) == before
    return str(caught.value)


def layer_over_ranks(rank: int, exchange: ProcessExchange) -> list[float]:
    """Outputs before and after a rebalance, by either way of communication, and its imbalance."""
    hidden, inter, chosen = 16, 8, 2
    whole = torch.Generator().manual_seed(0)
    shapes = {"w1": (inter, hidden), "w3": (inter, hidden), "w2": (hidden, inter)}
    experts = [
        {part: torch.randn(shape, generator=whole) for part, shape in shapes.items()}
        for _ in range(EXPERTS)
    ]
    layer = AscendRoutedExperts(
        EXPERTS,
        hidden,
        inter,
        torch.float32,
        ep_rank=rank,
        ep_ranks=RANKS,
        placement=initial_placement(EXPERTS, RANKS, REDUNDANT),
    )
    for expert, parts in enumerate(experts):
        for part, value in parts.items():
            layer.load_expert(expert, part, value)
    layer.process_weights_after_loading()
    window = ExpertLoadWindow(1, layer.maps.placement.places, 4)
    layer.init_eplb(window.of_layer(0))

    own = torch.Generator().manual_seed(rank + 1)
    tokens = [9, 0, 14][rank]
    x = torch.randn(tokens, hidden, generator=own)
    logits = torch.randn(tokens, EXPERTS, generator=own)
    logits[:, 6] += 5
    weights, ids = logits.softmax(-1).topk(chosen)
    expected = torch.zeros_like(x)
    for t, j in itertools.product(range(tokens), range(chosen)):
        one, share = experts[int(ids[t, j])], weights[t, j] / weights[t].sum()
        gate = one["w1"] @ x[t]
        expected[t] += share * (one["w2"] @ (gate * gate.sigmoid() * (one["w3"] @ x[t])))

    groups, figures = parallel_groups(dp=RANKS, tp=1), []
    for way in (AlltoAllCommImpl, AllGatherCommImpl):
        method = way(groups, ExpertPartition(EXPERTS + REDUNDANT, RANKS))
        router = AscendFusedTopKRouter(EXPERTS, chosen, scoring="softmax")
        runner = AscendMoERunner(router, layer, method, to_physical=layer.to_physical)
        before = runner(x, router_logits=logits)
        assert_close(before, expected, scale=16)
        window.advance()
        load = window.of_experts(window.total(groups.ep)[0], layer.maps.placement)
        plan = plan_rebalance(layer.maps.placement, load.tolist())
        layer.rebalance(plan.placement, exchange)
        window.clear()
        assert_close(runner(x, router_logits=logits), before, scale=16)
        figures += [plan.before, plan.after]
    return figures


def death(rank: int, exchange: ProcessExchange) -> str:
    """Rank 1 dies in the midst of overwriting; the others go back. No scene can follow."""
    layer = _layer(rank)
    before = _bytes(layer)
    plan = plan_rebalance(layer.maps.placement, [90, 1, 1, 1, 1, 1, 1])
    if rank == 1:
        layer.weights["w2"].dies = True  # type: ignore[attr-defined]
    with pytest.raises(RebalanceError) as caught:
        rebalance_layer(layer, plan.placement, exchange)
    assert _bytes(layer) == before
    return str(caught.value)


SCENES: tuple[Callable[[int, ProcessExchange], Any], ...] = (
    moves,
    failure,
    wrong_on_one,
    different,
    layer_over_ranks,
    death,
)


def _on(rank: int, folder: Path) -> None:
    """Run every scene as one of the processes and leave what was found."""
    torch.set_num_threads(1)
    found: dict[str, Any] = {}
    try:
        rendezvous = (folder / "rendezvous").as_uri()
        distributed.init_process_group("gloo", init_method=rendezvous, rank=rank, world_size=RANKS)
        exchange = ProcessExchange(distributed.group.WORLD)
        for scene in SCENES:
            (folder / f"found.{rank}").write_text(json.dumps(found))
            found[scene.__name__] = scene(rank, exchange)
    except BaseException:
        found["error"] = traceback.format_exc()
    (folder / f"found.{rank}").write_text(json.dumps(found))
    os._exit(0)  # the group has lost a rank and would be waited for


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """What each rank found, scene by scene."""
    folder = tmp_path_factory.mktemp("ranks")
    # Forked processes would inherit the threads of this one's kernels.
    ranks = [
        subprocess.Popen([sys.executable, __file__, str(rank), str(folder)])
        for rank in range(RANKS)
    ]
    for process in ranks:
        process.wait(120)
    found = [json.loads((folder / f"found.{rank}").read_text()) for rank in range(RANKS)]
    errors = [one["error"] for one in found if "error" in one]
    assert not errors, errors[0]
    return found


def test_weights_follow_their_experts(results: list[dict[str, Any]]) -> None:
    assert all(one["moves"] > 0 for one in results)


def test_a_failure_on_one_rank_takes_all_back(results: list[dict[str, Any]]) -> None:
    assert {one["failure"] for one in results} == {
        "rank 1: RuntimeError: the device is gone. Maps and weights are as they were."
    }


def test_a_table_that_is_wrong_on_one_rank_is_refused_on_all(
    results: list[dict[str, Any]],
) -> None:
    for rank, one in enumerate(results):
        assert "7 in place 0" in one["wrong_on_one"]
        assert ("rank 2 says" in one["wrong_on_one"]) == (rank != 2)


def test_tables_that_differ_are_refused(results: list[dict[str, Any]]) -> None:
    assert all("not the one of all ranks" in one["different"] for one in results)


def test_a_layer_gives_the_same_before_and_after(results: list[dict[str, Any]]) -> None:
    for one in results:
        before, after, then, _ = one["layer_over_ranks"]
        assert before > after >= 1
        assert then < before


def test_the_death_of_a_rank_takes_the_others_back(results: list[dict[str, Any]]) -> None:
    assert "death" not in results[1]
    for rank in (0, 2):
        assert f"rank {rank}: " in results[rank]["death"]
        assert "Maps and weights are as they were." in results[rank]["death"]


if __name__ == "__main__":
    _on(int(sys.argv[1]), Path(sys.argv[2]))
