"""Routers from the configurations of models."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from ascend_ops_core.errors import InvalidInputError

pytestmark = pytest.mark.engine


@pytest.mark.parametrize(
    ("names", "experts"),
    [
        ({"num_local_experts": 8, "num_experts_per_tok": 2}, 8),
        ({"num_experts": 6, "num_experts_per_tok": 1, "n_group": None}, 6),
    ],
    ids=["Mixtral", "Qwen3"],
)
def test_names_of_configurations(names: dict[str, Any], experts: int) -> None:
    from ascend_fused_moe.vllm.router import router_settings

    found = router_settings(SimpleNamespace(**names))
    assert (found.num_experts, found.scoring, found.groups) == (experts, "softmax", 1)


def test_groups_of_experts_are_read() -> None:
    from ascend_fused_moe.vllm.router import router_settings

    given = {"n_routed_experts": 8, "num_experts_per_tok": 2, "n_group": 4, "topk_group": 2}
    given |= {"scoring_func": "sigmoid", "norm_topk_prob": False, "routed_scaling_factor": 2.5}
    found = router_settings(SimpleNamespace(**given))
    assert (found.groups, found.top_groups, found.scoring) == (4, 2, "sigmoid")
    assert (found.renormalize, found.scale) == (False, 2.5)


@pytest.mark.parametrize("names", [{"num_experts": 8}, {"num_experts_per_tok": 2}], ids=str)
def test_a_config_without_experts_is_refused(names: dict[str, int]) -> None:
    from ascend_fused_moe.vllm.router import router_settings

    with pytest.raises(InvalidInputError, match="num_experts_per_tok"):
        router_settings(SimpleNamespace(**names))
