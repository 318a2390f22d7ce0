"""The router with groups against sorting in Python and against transformers."""

from __future__ import annotations

import math
import re

import pytest
import torch
from ascend_fused_moe.ops.grouped_routing import GROUP_SCORES, grouped_topk_routing
from ascend_fused_moe.ops.routing import SCORING_FUNCTIONS, topk_routing
from ascend_ops_core import InvalidInputError
from ascend_ops_core.devices import facts_of
from ascend_ops_core.registry import find
from ascend_ops_core.testing import assert_close
from hypothesis import given, settings
from hypothesis import strategies as st

LOWEST = float(torch.finfo(torch.float32).min)


def score_of(logit: float, row: list[float], scoring: str) -> float:
    if scoring == "softmax":
        return math.exp(logit) / sum(math.exp(v) for v in row)
    if scoring == "sigmoid":
        return 1 / (1 + math.exp(-logit))
    return math.sqrt(math.log1p(math.exp(logit)))


def by_sorting(ranked: list[float], k: int, groups: int, top_groups: int, kind: str) -> list[int]:
    """Experts in order; of equal ones, and of equal groups, the lower first."""
    size = len(ranked) // groups
    of_groups = []
    for g in range(groups):
        best = sorted(ranked[g * size : (g + 1) * size], reverse=True)
        of_groups.append(max(sum(best[:2]) if kind == "top2" else best[0], LOWEST))
    chosen = sorted(range(groups), key=lambda g: (-of_groups[g], g))[:top_groups]
    within = [e for e in range(len(ranked)) if e // size in chosen]
    return sorted(within, key=lambda e: (-ranked[e], e))[:k]


@pytest.mark.oracle("ascend_fused_moe::grouped_topk_routing", "sorting in Python, exact ties")
@settings(max_examples=150)
@given(data=st.data())
def test_equals_brute_force(data: st.DataObject) -> None:
    """Scores of the form n / 64 are exact, so that ids, ties among them too, must be equal."""
    kind = data.draw(st.sampled_from(GROUP_SCORES))
    groups = data.draw(st.integers(1, 6))
    size = data.draw(st.integers(2 if kind == "top2" else 1, 5))
    top_groups = data.draw(st.integers(1, groups))
    k = data.draw(st.integers(1, top_groups * size))
    experts = groups * size
    bias = data.draw(st.lists(st.integers(-3, 3), min_size=experts, max_size=experts))
    # sigmoid(0) is exactly 1/2, so the bias alone ranks, and it has few values.
    shift = torch.tensor(bias, dtype=torch.float32) / 64
    weights, ids = grouped_topk_routing(
        torch.zeros(2, experts), shift, k, groups, top_groups, group_score=kind
    )
    expected = by_sorting([0.5 + b / 64 for b in bias], k, groups, top_groups, kind)
    assert ids.tolist() == [expected, expected]
    # The bias moves the choice but not the weights.
    assert_close(weights, torch.full((2, k), 1 / k))


@pytest.mark.parametrize("scoring", SCORING_FUNCTIONS)
@pytest.mark.parametrize("kind", GROUP_SCORES)
@pytest.mark.parametrize("renormalize", [True, False])
def test_weights_and_choice_of_every_scoring(scoring: str, kind: str, renormalize: bool) -> None:
    logits, bias = torch.randn(40, 24), torch.rand(24)
    weights, ids = grouped_topk_routing(
        logits,
        bias,
        5,
        6,
        3,
        scoring=scoring,
        group_score=kind,
        renormalize=renormalize,
        scale=1.5,
    )
    for row, got, chosen in zip(logits.tolist(), weights, ids.tolist(), strict=True):
        scores = [score_of(v, row, scoring) for v in row]
        ranked = [s + b for s, b in zip(scores, bias.tolist(), strict=True)]
        assert chosen == by_sorting(ranked, 5, 6, 3, kind)
        own = torch.tensor([scores[e] for e in chosen])
        assert_close(got, own / (own.sum() if renormalize else 1) * 1.5)


@pytest.mark.oracle("ascend_fused_moe::grouped_topk_routing", "transformers' DeepseekV3TopkRouter")
@torch.no_grad()
def test_equals_transformers() -> None:
    from transformers import DeepseekV3Config
    from transformers.models.deepseek_v3.modeling_deepseek_v3 import DeepseekV3TopkRouter

    config = DeepseekV3Config(
        hidden_size=16,
        n_routed_experts=24,
        num_experts_per_tok=4,
        n_group=6,
        topk_group=2,
        routed_scaling_factor=2.5,
    )
    module = DeepseekV3TopkRouter(config)
    module.weight.normal_()
    module.e_score_correction_bias.normal_()
    logits, weights, expected = module(torch.randn(65, 16))
    got, ids = grouped_topk_routing(logits, module.e_score_correction_bias, 4, 6, 2, scale=2.5)
    assert torch.equal(ids.sort(-1).values, expected.sort(-1).values)
    by_expert = torch.zeros(65, 24)
    assert_close(by_expert.scatter(1, ids, got), by_expert.scatter(1, expected, weights))


def test_all_groups_are_no_limit() -> None:
    logits, bias = torch.randn(33, 24), torch.randn(24)
    for kind in GROUP_SCORES:
        grouped = grouped_topk_routing(logits, bias, 5, 6, 6, group_score=kind)
        plain = topk_routing(logits, bias, 5, scoring="sigmoid")
        assert torch.equal(grouped[1], plain[1])
        assert_close(grouped[0], plain[0])


@pytest.mark.parametrize("kind", GROUP_SCORES)
@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("how_many", [1, 4, 11, 12])
def test_ids_stay_in_range_and_in_few_groups(kind: str, bad: float, how_many: int) -> None:
    logits = torch.randn(5, 12)
    logits[1, :how_many] = bad
    for bias in (None, torch.randn(12), torch.full((12,), bad)):
        for scoring in SCORING_FUNCTIONS:
            settings_of = {"scoring": scoring, "group_score": kind}
            _, ids = grouped_topk_routing(logits, bias, 5, 4, 2, **settings_of)
            for row in ids.tolist():
                assert len(set(row)) == 5
                assert all(0 <= e < 12 for e in row)
                assert len({e // 3 for e in row}) == 2


def test_bad_settings_name_value_limit_and_remedy() -> None:
    x = torch.zeros(1, 12)
    for change, message in (
        ({"groups": 5}, r"n_group=5: it must divide 12 experts"),
        ({"groups": 0}, r"n_group=0"),
        ({"top_groups": 5}, r"topk_group=5: there are 4 groups"),
        ({"top_groups": 0}, r"topk_group=0"),
        ({"top_k": 7}, r"top_k=7: 2 groups have 6 experts"),
        ({"top_k": 0}, r"top_k=0"),
        ({"groups": 12}, r"n_group=12 with group_score='top2': a group has 1 expert"),
        ({"group_score": "mean"}, r"group_score='mean': known are top2, max"),
        ({"scoring": "tanh"}, r"scoring_func='tanh'"),
        ({"bias": torch.zeros(3)}, r"bias of shape \[3\]: there are 12 experts"),
        ({"logits": x[0]}, r"logits of shape \[12\]: expected \[T, E\]"),
    ):
        given = {"logits": x, "bias": None, "top_k": 2, "groups": 4, "top_groups": 2, **change}
        with pytest.raises(InvalidInputError, match=message):
            grouped_topk_routing(**given)


GROUPED = find("ascend_fused_moe::grouped_topk_routing")


@pytest.mark.parametrize(
    ("family", "changed", "reason"),
    [
        ("A2", {}, ""),
        ("A5", {}, ""),
        ("A3", {"scoring": "softmax", "group_score": "max"}, ""),
        ("A5", {"group_score": "max"}, "'max' on A5.*'top2' there"),
        ("A5", {"scoring": "softmax"}, "softmax on A5"),
        ("A2", {"scoring": "sqrtsoftplus"}, "documents softmax and sigmoid"),
        ("A2", {"renormalize": False}, "not renormalised"),
        ("A2", {"groups": 128}, "groups of 2 experts, .* takes 3 and more"),
        ("A2", {"groups": 64, "experts": 256, "top_groups": 64}, ""),
        ("A2", {"groups": 128, "experts": 512}, "rounded up to 32 they have 4096.*takes 2048"),
    ],
)
def test_choice_of_the_implementation(family: str, changed: dict[str, object], reason: str) -> None:
    given = {
        "experts": 256,
        "top_k": 8,
        "groups": 8,
        "top_groups": 4,
        "scoring": "sigmoid",
        "group_score": "top2",
        "renormalize": True,
        **changed,
    }
    logits = torch.empty(7, given.pop("experts"), device="meta")  # type: ignore[call-overload]
    arguments = logits, None, *given.values(), 1.0
    facts = facts_of(family)
    chosen = GROUPED.choose(facts, *arguments).implementation
    assert chosen == ("triton" if reason else "torch_npu")
    found = GROUPED.supports("torch_npu", facts, *arguments).reason
    assert re.search(reason, found) if reason else found == ""
