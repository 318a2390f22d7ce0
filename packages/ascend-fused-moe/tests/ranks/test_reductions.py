"""Each output is summed over the ranks exactly once (real processes; bug case 6)."""

from __future__ import annotations

from typing import Any

import pytest

LAYOUTS = ((2, 1), (1, 2), (3, 1), (1, 3), (1, 4), (2, 2))
WHOLE = (None, "tensor_parallel", "replicated", "local_tokens")
SHARED_OUT = (None, "sequence_parallel", "replicated", "local_tokens")


def expected(layer: dict[str, Any]) -> dict[tuple[str, str], int]:
    """Calls that sum: one for what is in parts on each group's ranks, none for what is not."""
    tp, dp = layer["tp"] > 1, layer["dp"] > 1
    shared_out = layer["sequence_parallel"]
    calls = {("tp", "all_reduce"): 0, ("tp", "reduce_scatter"): 0}
    calls |= {("dp", "reduce_scatter"): 0, ("ep", "reduce_scatter"): 0}
    if layer["method"] == "all_gather":
        if shared_out and layer["expert_parallel"]:
            calls["ep", "reduce_scatter"] += 1
        else:
            calls["dp", "reduce_scatter"] += dp
            # Shared experts in parts are summed by the same call.
            calls["tp", "reduce_scatter" if shared_out else "all_reduce"] += tp
    elif layer["shared"] == "tensor_parallel":
        calls["tp", "all_reduce"] += tp
    if layer["shared"] == "sequence_parallel":
        calls["tp", "reduce_scatter"] += tp
    return calls


def layers_of(dp: int, tp: int, reduce_results: bool) -> list[dict[str, Any]]:
    given = {"dp": dp, "tp": tp, "tokens": (5, 3, 4)[:dp]}
    given["options"] = {"reduce_results": reduce_results}
    ways = [("all_gather", True), ("all_gather", False), ("all_to_all", True)]
    return [
        {
            **given,
            "method": method,
            "expert_parallel": expert_parallel,
            "sequence_parallel": shared_out,
            "shared": shared,
        }
        for method, expert_parallel in ways
        for shared_out in (False, True)
        for shared in (SHARED_OUT if shared_out else WHOLE)
    ]


@pytest.mark.parametrize("reduce_results", [True, False], ids=["layer_sums", "model_sums"])
@pytest.mark.parametrize(("dp", "tp"), LAYOUTS)
def test_one_reduction_of_each_output(ranks: Any, dp: int, tp: int, reduce_results: bool) -> None:
    """Outputs are compared as well, behind the call that a model makes where it sums itself."""
    layers = layers_of(dp, tp, reduce_results)
    for layer, results in zip(layers, ranks.check(*layers), strict=True):
        for one in results:
            made = {
                (group, name): one["calls"][group].get(name, 0) for group, name in expected(layer)
            }
            assert made == expected(layer), layer


@pytest.mark.parametrize("shared", WHOLE)
def test_a_model_is_told_whether_to_sum(ranks: Any, shared: str | None) -> None:
    """The all-reduce that a model adds is none where the layer's output is whole already."""
    in_parts = {"all_gather": shared in (None, "tensor_parallel"), "all_to_all": False}
    for method, parts in in_parts.items():
        layer = {"dp": 1, "tp": 2, "tokens": (5,), "method": method, "shared": shared}
        (results,) = ranks.check({**layer, "options": {"reduce_results": False}})
        assert [one["whole"] for one in results] == [not parts] * 2
        (results,) = ranks.check(layer)
        assert [one["whole"] for one in results] == [True] * 2
