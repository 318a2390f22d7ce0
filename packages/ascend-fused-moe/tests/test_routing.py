"""Routers against brute force and against transformers' modules."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from ascend_fused_moe.ops.routing import SCORING_FUNCTIONS, hash_routing, reference, topk_routing
from ascend_ops_core import InvalidInputError
from ascend_ops_core.testing import assert_close
from hypothesis import given, settings
from hypothesis import strategies as st

EXPERTS = 8


def scores_of(logits: list[float], scoring: str) -> list[float]:
    if scoring == "softmax":
        total = sum(math.exp(v) for v in logits)
        return [math.exp(v) / total for v in logits]
    if scoring == "sigmoid":
        return [1 / (1 + math.exp(-v)) for v in logits]
    return [math.sqrt(math.log1p(math.exp(v))) for v in logits]


def weights_of(chosen: list[float], renormalize: bool, scale: float) -> list[float]:
    return [v / sum(chosen) * scale if renormalize else v * scale for v in chosen]


def brute_force(
    logits: list[float], bias: list[float], k: int, scoring: str, renormalize: bool, scale: float
) -> dict[int, float]:
    scores = scores_of(logits, scoring)
    order = sorted(range(len(scores)), key=lambda e: -(scores[e] + bias[e]))[:k]
    return dict(zip(order, weights_of([scores[e] for e in order], renormalize, scale), strict=True))


@settings(deadline=None, max_examples=60)
@given(
    # Distinct logits and biases, far enough apart that float32 ranks them as float64 does.
    logits=st.lists(st.integers(-400, 400), min_size=EXPERTS, max_size=EXPERTS, unique=True),
    bias=st.none() | st.lists(st.integers(-300, 300), min_size=EXPERTS, max_size=EXPERTS),
    k=st.integers(1, EXPERTS),
    scoring=st.sampled_from(SCORING_FUNCTIONS),
    renormalize=st.booleans(),
    scale=st.sampled_from([1.0, 2.5]),
)
def test_topk_equals_brute_force(
    logits: list[int],
    bias: list[int] | None,
    k: int,
    scoring: str,
    renormalize: bool,
    scale: float,
) -> None:
    row = [v / 100 for v in logits]
    shift = [0.0] * EXPERTS if bias is None else [v / 97 + e / 1000 for e, v in enumerate(bias)]
    weights, ids = topk_routing(
        torch.tensor([row]),
        None if bias is None else torch.tensor(shift),
        k,
        scoring=scoring,
        renormalize=renormalize,
        scale=scale,
    )
    assert weights.dtype == torch.float32
    assert ids.dtype == torch.int64
    expected = brute_force(row, shift, k, scoring, renormalize, scale)
    assert len(set(ids[0].tolist())) == k
    ranked = [v + s for v, s in zip(scores_of(row, scoring), shift, strict=True)]
    gaps = sorted(ranked, reverse=True)
    if k < EXPERTS and gaps[k - 1] - gaps[k] < 1e-5:
        return
    assert set(ids[0].tolist()) == set(expected)
    got = torch.tensor([expected[int(e)] for e in ids[0]])
    assert_close(weights[0], got, scale=10)


def in_order(scores: torch.Tensor, k: int) -> list[list[int]]:
    """Ids by falling score, of equal scores the lower first; NaN and -inf last."""
    rows = [[v if v > -math.inf else -math.inf for v in row] for row in scores.tolist()]
    return [sorted(range(len(row)), key=lambda e, row=row: (-row[e], e))[:k] for row in rows]


@pytest.mark.oracle("ascend_fused_moe::topk_routing", "sorting in Python, exact order of ties")
@pytest.mark.parametrize("requires_grad", [False, True], ids=["kernel", "definition"])
@pytest.mark.parametrize("scoring", SCORING_FUNCTIONS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_of_equal_experts_the_lower_id_comes_first(
    dtype: torch.dtype, scoring: str, requires_grad: bool
) -> None:
    logits = torch.randint(-3, 3, (65, 33)).to(dtype).requires_grad_(requires_grad)
    # Every scoring grows with the logit, so the order of logits is that of scores.
    for k in (1, 8, 33):
        _, ids = topk_routing(logits, None, k, scoring=scoring)
        assert ids.tolist() == in_order(logits.detach().float(), k)


@pytest.mark.parametrize("requires_grad", [False, True], ids=["kernel", "definition"])
@pytest.mark.parametrize("scoring", ["sqrtsoftplus", "sigmoid"])
def test_what_is_not_finite_comes_last_in_order_of_ids(scoring: str, requires_grad: bool) -> None:
    bias = torch.tensor([0.0, math.nan, 1.0, -math.inf, math.inf, 2.0])
    logits = torch.tensor([[math.nan, 1.0, -9.0, 2.0, -math.inf, math.nan]])
    _, ids = topk_routing(logits.requires_grad_(requires_grad), bias, 6, scoring=scoring)
    assert ids.tolist() == [[4, 2, 0, 1, 3, 5]]


def test_bias_moves_the_choice_but_not_the_weights() -> None:
    logits = torch.tensor([[3.0, 2.0, 1.0, 0.0]])
    bias = torch.tensor([0.0, 0.0, 0.0, 100.0])
    weights, ids = topk_routing(logits, bias, 1, scoring="sigmoid", renormalize=False)
    assert ids.tolist() == [[3]]
    assert weights.tolist() == [[0.5]]


@pytest.mark.parametrize("scoring", SCORING_FUNCTIONS)
def test_renormalised_weights_sum_to_the_scale(scoring: str) -> None:
    logits = torch.randn(17, EXPERTS)
    weights, _ = topk_routing(logits, None, 3, scoring=scoring, scale=1.5)
    assert_close(weights.sum(-1), torch.full((17,), 1.5))
    plain, ids = topk_routing(logits, None, 3, scoring=scoring, renormalize=False)
    assert_close(plain / plain.sum(-1, keepdim=True) * 1.5, weights)
    assert (ids >= 0).all()


@pytest.mark.parametrize("scoring", SCORING_FUNCTIONS)
@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("how_many", [1, EXPERTS - 1, EXPERTS])
def test_ids_stay_in_range_whatever_the_logits(scoring: str, bad: float, how_many: int) -> None:
    logits = torch.randn(5, EXPERTS)
    logits[1, :how_many] = bad
    for bias in (None, torch.randn(EXPERTS), torch.full((EXPERTS,), bad)):
        _, ids = topk_routing(logits, bias, 3, scoring=scoring)
        assert ((ids >= 0) & (ids < EXPERTS)).all()
        assert all(len(set(row)) == 3 for row in ids.tolist())


@pytest.mark.parametrize("scoring", ["sqrtsoftplus", "sigmoid"])
def test_a_nan_logit_counts_as_the_lowest(scoring: str) -> None:
    logits = torch.tensor([[math.nan, -50.0, 1.0, math.nan]])
    weights, ids = topk_routing(logits, None, 2, scoring=scoring)
    assert sorted(ids[0].tolist()) == [1, 2]
    assert weights.isfinite().all()


def test_scores_that_are_all_zero_give_zero_weights() -> None:
    weights, _ = topk_routing(torch.full((1, 4), -200.0), None, 2)
    assert torch.equal(weights, torch.zeros(1, 2))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("tokens", [0, 1, 17])
def test_any_number_of_tokens_in_any_dtype(tokens: int, dtype: torch.dtype) -> None:
    logits = torch.randn(tokens, EXPERTS).to(dtype)
    weights, ids = topk_routing(logits, torch.zeros(EXPERTS), 8)
    assert weights.shape == ids.shape == (tokens, 8)
    expected, _ = topk_routing(logits.float(), torch.zeros(EXPERTS), 8)
    assert torch.equal(weights, expected)
    table = torch.arange(20, dtype=torch.int32).view(10, 2) % EXPERTS
    weights, ids = hash_routing(logits, torch.zeros(tokens, dtype=torch.int64), table)
    assert weights.shape == ids.shape == (tokens, 2)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("tokens", [1, 3, 17])
@pytest.mark.parametrize("renormalize", [True, False])
@pytest.mark.parametrize("scoring", SCORING_FUNCTIONS)
def test_kernel_equals_definition(
    scoring: str, tokens: int, renormalize: bool, dtype: torch.dtype
) -> None:
    pytest.importorskip("numba")
    from ascend_fused_moe.ops.routing import cpu

    logits = (5 * torch.randn(tokens, 13)).to(dtype)
    bias = torch.randn(13)
    weights, ids = cpu.topk_routing(logits, bias, 4, scoring, renormalize, 1.5)
    expected, same = reference.topk_routing(logits, bias, 4, scoring, renormalize, 1.5)
    assert torch.equal(ids, same)
    assert_close(weights, expected, scale=10)
    token_ids = torch.randint(0, 7, (tokens,))
    table = torch.randint(0, 13, (7, 4), dtype=torch.int32)
    weights, ids = cpu.hash_routing(logits, token_ids, table, scoring, renormalize, 1.5)
    expected, same = reference.hash_routing(logits, token_ids, table, scoring, renormalize, 1.5)
    assert torch.equal(ids, same)
    assert_close(weights, expected, scale=10)


def oracle(kind: str, hash_rows: int = 50) -> tuple[Any, Any]:
    from transformers import DeepseekV4Config
    from transformers.models.deepseek_v4 import modeling_deepseek_v4

    config = DeepseekV4Config(
        num_hidden_layers=1,
        hidden_size=16,
        n_routed_experts=EXPERTS,
        num_experts_per_tok=3,
        vocab_size=hash_rows,
        routed_scaling_factor=2.5,
    )
    module = getattr(modeling_deepseek_v4, kind)(config)
    module.weight.data.normal_()
    return module, config


def by_expert(weights: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
    return torch.zeros(len(ids), EXPERTS).scatter(1, ids, weights)


@pytest.mark.oracle("ascend_fused_moe::topk_routing", "transformers' DeepseekV4TopKRouter")
@torch.no_grad()
def test_topk_equals_transformers() -> None:
    module, _ = oracle("DeepseekV4TopKRouter")
    module.e_score_correction_bias.normal_()
    logits, weights, ids = module(torch.randn(65, 16))
    got, got_ids = topk_routing(logits, module.e_score_correction_bias, 3, scale=2.5)
    assert torch.equal(got_ids.sort(-1).values, ids.sort(-1).values)
    assert_close(by_expert(got, got_ids), by_expert(weights, ids))


@pytest.mark.oracle("ascend_fused_moe::hash_routing", "transformers' DeepseekV4HashRouter")
@torch.no_grad()
def test_hash_equals_transformers() -> None:
    module, _ = oracle("DeepseekV4HashRouter")
    module.tid2eid.copy_(torch.rand(50, EXPERTS).argsort(-1)[:, :3])
    tokens = torch.randint(0, 50, (33,))
    logits, weights, ids = module(torch.randn(33, 16), tokens)
    for table in (module.tid2eid, module.tid2eid.int()):
        got, got_ids = hash_routing(logits, tokens, table, scale=2.5)
        assert torch.equal(got_ids, ids)
        assert_close(got, weights)


@pytest.mark.parametrize("scoring", SCORING_FUNCTIONS)
@pytest.mark.parametrize("renormalize", [True, False])
def test_hash_equals_brute_force(scoring: str, renormalize: bool) -> None:
    logits, table = torch.randn(4, EXPERTS), torch.tensor([[1, 6], [7, 0], [3, 2]])
    tokens = torch.tensor([2, 0, 2, 1], dtype=torch.int32)
    weights, ids = hash_routing(
        logits, tokens, table, scoring=scoring, renormalize=renormalize, scale=1.5
    )
    for row in range(4):
        chosen = table[tokens[row]].tolist()
        assert ids[row].tolist() == chosen
        scores = scores_of(logits[row].tolist(), scoring)
        expected = weights_of([scores[e] for e in chosen], renormalize, 1.5)
        assert_close(weights[row], torch.tensor(expected))


@pytest.mark.parametrize("token", [-1, 3, 1000])
def test_a_token_outside_the_table_is_named(token: int) -> None:
    with pytest.raises(InvalidInputError, match=rf"token id {token}.*3 rows.*Placeholder"):
        hash_routing(torch.zeros(2, 4), torch.tensor([0, token]), torch.zeros(3, 2).long())


@pytest.mark.parametrize("expert", [-1, 4])
def test_a_table_that_points_outside_the_experts_is_no_silent_gather(expert: int) -> None:
    with pytest.raises(RuntimeError, match="out of bounds"):
        hash_routing(torch.zeros(1, 4), torch.tensor([0]), torch.tensor([[expert, 0]]))


def test_bad_settings_name_value_limit_and_remedy() -> None:
    for k in (0, 5):
        with pytest.raises(InvalidInputError, match=rf"top_k={k}.*4 experts.*num_experts_per_tok"):
            topk_routing(torch.zeros(1, 4), None, k)
    with pytest.raises(InvalidInputError, match=r"scoring_func='tanh'.*sqrtsoftplus.*config"):
        topk_routing(torch.zeros(1, 4), None, 1, scoring="tanh")
    with pytest.raises(InvalidInputError, match=r"bias of shape \[3\].*4 experts"):
        topk_routing(torch.zeros(1, 4), torch.zeros(3), 1)
    with pytest.raises(InvalidInputError, match=r"logits of shape \[4\].*\[T, E\]"):
        topk_routing(torch.zeros(4), None, 1)
    with pytest.raises(InvalidInputError, match=r"token_ids \[2\] and table \[1, 1\].*T=1"):
        hash_routing(torch.zeros(1, 4), torch.tensor([0, 0]), torch.zeros(1, 1).long())
    with pytest.raises(InvalidInputError, match=r"scoring_func='tanh'"):
        hash_routing(torch.zeros(1, 4), torch.tensor([0]), torch.zeros(1, 1).long(), scoring="tanh")
