"""The layer with experts that have maps: replicas, moves and quantised weights (real processes)."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from ascend_ops_core.testing import assert_close

METHODS = ("all_gather", "all_to_all")
LAYOUTS = ((2, 1), (1, 3), (2, 2))


@pytest.mark.parametrize("redundant", [0, 3])
@pytest.mark.parametrize(("dp", "tp"), LAYOUTS)
def test_replicas_change_no_output(ranks: Any, dp: int, tp: int, redundant: int) -> None:
    given = {"dp": dp, "tp": tp, "tokens": (7, 4)[:dp], "redundant": redundant, "limit": 0.5}
    ranks.check(*({**given, "method": m} for m in METHODS), choices=redundant == 0)


def test_slices_of_experts_that_are_loaded_by_name(ranks: Any) -> None:
    given = {"expert_parallel": False, "redundant": 0}
    ranks.check(
        {**given, "dp": 1, "tp": 2, "tokens": (5,)}, {**given, "dp": 2, "tp": 2, "tokens": (5, 0)}
    )


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize(("dp", "tp"), LAYOUTS)
def test_outputs_stay_when_experts_move(ranks: Any, dp: int, tp: int, method: str) -> None:
    """Three of eight experts have all tokens, so their replicas move to other ranks."""
    given = {"dp": dp, "tp": tp, "tokens": (40, 25)[:dp], "method": method, "only": (4, 5, 6)}
    layer = ranks.worker.Layer(**given, redundant=4)
    results = [one for one in ranks.processes.call("rebalance", layer=layer) if one]
    expected = ranks.worker.by_brute_force(layer)
    assert sum(one["moved"] for one in results) > 0
    for rank, one in enumerate(results):
        assert_close(torch.from_numpy(one["before"]), expected[rank // tp], scale=4)
        assert_close(torch.from_numpy(one["after"]), expected[rank // tp], scale=4)
        # The same on every rank; rows that only fill up a rank's share are no load.
        assert one["load"] == results[0]["load"]
        assert [e for e, count in enumerate(one["load"]) if count] == [4, 5, 6]
        assert one["replicas"] == results[0]["replicas"]
        assert min(one["replicas"][e] for e in (4, 5, 6)) > 1


def test_quantised_experts_are_the_same_on_every_way(ranks: Any) -> None:
    """Rows are quantised one by one, so it does not matter which rank they are on."""
    worker = ranks.worker
    given = {"dp": 2, "tokens": (7, 4), "redundant": 0, "quant": "w8a8"}
    layers = [worker.Layer(**given, tp=tp, method=method) for tp in (1, 2) for method in METHODS]
    by_rank = ranks.processes.call("run_all", layers=layers)
    float_outputs = worker.by_brute_force(layers[0])
    for i, layer in enumerate(layers):
        for rank in range(layer.ranks):
            got = torch.from_numpy(by_rank[rank][i]["output"])
            part = rank // layer.tp
            alone = torch.from_numpy(by_rank[part][0]["output"])
            assert_close(got, alone, scale=4)
            # Eight bits are far from float32, and near enough to be the same experts.
            error = (got - float_outputs[part]).norm() / float_outputs[part].norm()
            assert 1e-4 < error < 0.05
