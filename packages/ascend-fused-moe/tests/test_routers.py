"""Routers and the choice among them."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
import torch
from ascend_fused_moe.ops.grouped_routing import grouped_topk_routing
from ascend_fused_moe.ops.routing import hash_routing, topk_routing
from ascend_fused_moe.pipeline import MoERouterInput
from ascend_fused_moe.routers import (
    AscendFusedTopKRouter,
    AscendGroupedTopKRouter,
    AscendHashRouter,
    ForcedRouter,
    RouterSettings,
    build_force_eplb_topk,
    check_npu_moe_gating_top_k,
    create_ascend_fused_moe_router,
    get_force_eplb_topk,
)
from ascend_ops_core import InvalidInputError
from ascend_ops_core.devices import facts_of

PLAIN = RouterSettings(12, 3, scoring="sigmoid", scale=2.5)
GROUPED = replace(PLAIN, groups=4, top_groups=2)
TABLE = torch.rand(20, 12).argsort(-1)[:, :3].int()


def given(tokens: int = 7) -> MoERouterInput:
    return MoERouterInput(
        torch.zeros(tokens, 1), torch.randn(tokens, 12), torch.arange(tokens) % 20
    )


def test_each_router_asks_its_operator() -> None:
    bias, x = torch.randn(12), given()
    plain = {"scoring": "sigmoid", "scale": 2.5}
    cases = (
        (
            create_ascend_fused_moe_router(PLAIN, bias=bias),
            AscendFusedTopKRouter,
            topk_routing(x.router_logits, bias, 3, **plain),
        ),
        (
            create_ascend_fused_moe_router(GROUPED, bias=bias),
            AscendGroupedTopKRouter,
            grouped_topk_routing(x.router_logits, bias, 3, 4, 2, **plain),
        ),
        (
            create_ascend_fused_moe_router(GROUPED),
            AscendGroupedTopKRouter,
            grouped_topk_routing(x.router_logits, None, 3, 4, 2, group_score="max", **plain),
        ),
        (
            create_ascend_fused_moe_router(PLAIN, table=TABLE),
            AscendHashRouter,
            hash_routing(x.router_logits, x.token_ids, TABLE, **plain),
        ),
    )
    for router, kind, (weights, ids) in cases:
        assert type(router) is kind
        assert (router.num_experts, router.top_k) == (12, 3)
        got_weights, got_ids = router.select_experts(x)
        assert torch.equal(got_ids, ids)
        assert torch.equal(got_weights, weights)


def test_a_group_score_that_is_said_counts() -> None:
    assert GROUPED.score_of_groups(None) == "max"
    assert GROUPED.score_of_groups(torch.zeros(12)) == "top2"
    assert replace(GROUPED, group_score="top2").score_of_groups(None) == "top2"


@pytest.mark.parametrize("rows", [0, 1, 5, 8])
def test_forced_experts_come_in_turn(rows: int) -> None:
    table = build_force_eplb_topk(8, 3, 5)
    turn = [[(3 * t + j) % 5 for j in range(3)] for t in range(8)]
    assert table.tolist() == turn
    weights, ids = get_force_eplb_topk(table, rows)
    assert ids.tolist() == turn[:rows]
    torch.testing.assert_close(weights, torch.full((rows, 3), 1 / 3))
    # The same storage at every step, which a captured graph reads.
    assert rows == 0 or ids.data_ptr() == table.data_ptr()


def test_forced_load_is_even() -> None:
    router = create_ascend_fused_moe_router(replace(PLAIN, forced_rows=8), table=TABLE)
    assert type(router) is ForcedRouter
    _, ids = router.select_experts(given(8))
    assert torch.bincount(ids.flatten(), minlength=12).tolist() == [2] * 12
    assert all(len(set(row)) == 3 for row in ids.tolist())


def test_what_does_not_fit_is_named() -> None:
    with pytest.raises(InvalidInputError, match=r"9 rows: the table of forced experts has 8"):
        get_force_eplb_topk(build_force_eplb_topk(8, 3, 5), 9)
    with pytest.raises(InvalidInputError, match=r"top_k=6: there are 5 experts"):
        build_force_eplb_topk(8, 6, 5)
    with pytest.raises(InvalidInputError, match=r"n_group=5: it must divide 12"):
        create_ascend_fused_moe_router(replace(GROUPED, groups=5))
    with pytest.raises(InvalidInputError, match=r"a table \[20, 3\] and a bias"):
        create_ascend_fused_moe_router(PLAIN, table=TABLE, bias=torch.zeros(12))
    with pytest.raises(InvalidInputError, match=r"top_k=2 for each token"):
        create_ascend_fused_moe_router(replace(PLAIN, top_k=2), table=TABLE)
    for bad in (-1, 12):
        table = TABLE.clone()
        table[3, 1] = bad
        with pytest.raises(InvalidInputError, match=rf"expert id {bad} in the routing table"):
            create_ascend_fused_moe_router(PLAIN, table=table)
    router = create_ascend_fused_moe_router(PLAIN, table=TABLE)
    with pytest.raises(InvalidInputError, match="token_ids=None"):
        router.select_experts(replace(given(), token_ids=None))


@pytest.mark.parametrize(
    ("family", "settings", "reason"),
    [
        ("A2", PLAIN, ""),
        ("A5", PLAIN, ""),
        ("A5", replace(PLAIN, scoring="softmax"), "softmax on A5"),
        ("A3", replace(PLAIN, scoring="sqrtsoftplus"), "documents softmax and sigmoid"),
        ("A3", replace(PLAIN, renormalize=False), "not renormalised"),
        ("A3", GROUPED, ""),
        ("A3", replace(GROUPED, groups=6), "groups of 2 experts"),
        ("A5", GROUPED, "'max' on A5"),
        ("A3", replace(PLAIN, forced_rows=4), "experts in turn"),
    ],
)
def test_where_the_gating_operator_is_documented(
    family: str, settings: RouterSettings, reason: str
) -> None:
    found = check_npu_moe_gating_top_k(facts_of(family), settings).reason
    assert re.search(reason, found) if reason else found == ""


def test_the_gating_operator_takes_no_table() -> None:
    assert "a table" in check_npu_moe_gating_top_k(facts_of("A3"), PLAIN, table=TABLE).reason


def test_rows_without_tokens() -> None:
    """Bug case 1."""
    for router in (
        create_ascend_fused_moe_router(PLAIN),
        create_ascend_fused_moe_router(GROUPED),
        create_ascend_fused_moe_router(PLAIN, table=TABLE),
        create_ascend_fused_moe_router(replace(PLAIN, forced_rows=4)),
    ):
        weights, ids = router.select_experts(given(0))
        assert weights.shape == ids.shape == (0, 3)
