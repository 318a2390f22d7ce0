"""Routed experts on every path of the CPU kernel (bug cases 1 and 7)."""

from __future__ import annotations

from typing import NamedTuple

import numba
import numpy as np
import pytest
import torch
from ascend_fused_moe.ops.experts import cpu, fused_experts, reference
from ascend_fused_moe.ops.experts.cpu_pairs import group
from ascend_fused_moe.ops.routing import topk_routing
from ascend_ops_core import InvalidInputError
from ascend_ops_core.testing import assert_close

DTYPES = (torch.float32, torch.bfloat16, torch.float16)


class Case(NamedTuple):
    x: torch.Tensor
    w13: torch.Tensor
    w2: torch.Tensor
    weights: torch.Tensor
    ids: torch.Tensor


def case(
    tokens: int,
    k: int = 3,
    experts: int = 5,
    hidden: int = 19,
    inter: int = 37,
    dtype: torch.dtype = torch.float32,
) -> Case:
    torch.manual_seed(tokens * 100 + k)
    ids = torch.rand(tokens, experts).argsort(-1)[:, :k]
    return Case(
        torch.randn(tokens, hidden).to(dtype),
        (torch.randn(experts, 2 * inter, hidden) / hidden**0.5).to(dtype),
        (torch.randn(experts, hidden, inter) / inter**0.5).to(dtype),
        torch.rand(tokens, k),
        ids,
    )


def brute_force(
    given: Case, limit: float | None, alpha: float = 1.0, bias: float = 0.0
) -> torch.Tensor:
    """Token by token and choice by choice, in float64."""
    out = torch.zeros(given.x.shape, dtype=torch.float64)
    inter = given.w2.shape[2]
    for t in range(len(given.x)):
        for weight, e in zip(given.weights[t], given.ids[t], strict=True):
            both = given.w13[e].double() @ given.x[t].double()
            gate, up = both[:inter], both[inter:]
            if limit:
                gate, up = gate.clamp(max=limit), up.clamp(-limit, limit)
            out[t] += weight * (
                given.w2[e].double() @ (gate / (1 + (-alpha * gate).exp()) * (up + bias))
            )
    return out


# The last one are enough for torch's products where they are used for bfloat16.
@pytest.mark.parametrize("tokens", [1, 5, 65])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_gpt_oss_activation_on_halves(tokens: int, dtype: torch.dtype) -> None:
    given = case(tokens, dtype=dtype)
    got = fused_experts(*given, swiglu_limit=0.7, alpha=1.702, bias=1.0)
    assert_close(got, brute_force(given, 0.7, 1.702, 1.0), scale=4)


# Up to 32 tokens one thread copies them.
@pytest.mark.parametrize("tokens", [0, 1, 3, 4, 5, 32, 33, 65])
@pytest.mark.parametrize("k", [1, 3, 5])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_equals_brute_force(tokens: int, k: int, dtype: torch.dtype) -> None:
    given = case(tokens, k, dtype=dtype)
    got = fused_experts(*given, swiglu_limit=0.7)
    assert got.dtype == dtype
    assert_close(got, brute_force(given, 0.7))


@pytest.fixture
def own_products(monkeypatch: pytest.MonkeyPatch) -> None:
    """Torch's bfloat16 products, which some CPUs have, know nothing of the kernel's sizes."""
    monkeypatch.setattr(cpu, "_torch_is_faster", lambda: False)


@pytest.mark.parametrize("native", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("tokens", [39, 40, 130])
def test_many_pairs_per_expert(
    tokens: int, dtype: torch.dtype, native: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both sides of the crossover to torch's products, which some CPUs multiply faster by."""
    monkeypatch.setattr(cpu, "_torch_is_faster", lambda: native)
    given = case(tokens, 3, dtype=dtype)
    given.ids[5] = given.ids[5, 0]
    shared = (torch.randn(26, 19) / 19**0.5).to(dtype), (torch.randn(19, 13) / 13**0.5).to(dtype)
    alone = Case(
        given.x,
        shared[0].unsqueeze(0),
        shared[1].unsqueeze(0),
        torch.ones(tokens, 1),
        torch.zeros(tokens, 1, dtype=torch.int64),
    )
    expected = brute_force(given, 0.7)
    assert_close(fused_experts(*given, swiglu_limit=0.7), expected)
    both = fused_experts(*given, swiglu_limit=0.7, shared=shared)
    assert_close(both, expected + brute_force(alone, 0.7), scale=2)
    called = []
    monkeypatch.setattr(cpu, "with_torch", lambda *args: called.append(args))
    fused_experts(*given)
    many = 3 * tokens >= cpu._NATIVE_PAIRS_PER_EXPERT * 5
    assert bool(called) == (native and many and dtype == torch.bfloat16)


@pytest.mark.parametrize("native", [False, True])
@pytest.mark.parametrize("tiles", [False, True])
@pytest.mark.parametrize("pairs", [False, True])
def test_torch_has_what_the_kernel_does_not(
    native: bool, tiles: bool, pairs: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cpu, "native_bf16", lambda: native)
    monkeypatch.setattr(cpu, "multiplies_bf16", lambda: pairs)
    monkeypatch.setattr(torch.cpu, "_is_amx_tile_supported", lambda: tiles)
    assert cpu._torch_is_faster.__wrapped__() == (native and (tiles or not pairs))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_more_tokens_than_are_taken_at_once(
    dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cpu, "_TOKENS_AT_ONCE", 16)
    given = case(33, 2, dtype=dtype)
    assert_close(fused_experts(*given), brute_force(given, None))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize(
    ("hidden", "inter"), [(1, 1), (32, 64), (33, 31), (65, 96), (131, 66), (129, 130)]
)
@pytest.mark.parametrize("tokens", [4, 40])
@pytest.mark.usefixtures("own_products")
def test_sizes_around_a_task_of_rows(
    tokens: int, hidden: int, inter: int, dtype: torch.dtype
) -> None:
    given = case(tokens, 2, 3, hidden, inter, dtype)
    assert_close(fused_experts(*given), brute_force(given, None))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("tokens", [7, 40])
def test_all_tokens_to_one_expert(tokens: int, dtype: torch.dtype) -> None:
    given = case(tokens, 1, dtype=dtype)
    given.ids.fill_(3)
    assert_close(fused_experts(*given), brute_force(given, None))
    # Nothing that no token chose may be read.
    for e in (0, 1, 2, 4):
        given.w13[e] = float("nan")
        given.w2[e] = float("nan")
    assert fused_experts(*given).isfinite().all()


@pytest.mark.usefixtures("own_products")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_more_tokens_of_an_expert_than_stay_in_a_cache(dtype: torch.dtype) -> None:
    given = case(60, 1, 2, 7000, 20, dtype)
    assert_close(fused_experts(*given), brute_force(given, None))


@pytest.mark.parametrize("at_most", [1, 4, 7, 100])
def test_blocks_of_pairs(at_most: int) -> None:
    ids = np.array([3, 0, 3, 3, 5, 3, 0, 3, 3, 3, 3], dtype=np.int64)
    order, experts, starts = group(ids, 6, at_most)
    assert order.tolist() == sorted(range(11), key=lambda i: ids[i])
    sizes = np.diff(starts)
    assert (starts[0], starts[-1]) == (0, 11)
    assert sizes.min() >= 1
    assert sizes.max() <= at_most
    for expert, begin, end in zip(experts, starts[:-1], starts[1:], strict=True):
        assert set(ids[order[begin:end]]) == {expert}
    assert sizes[experts == 3].max() - sizes[experts == 3].min() <= 1


@pytest.mark.parametrize("tokens", [1, 40])
def test_one_thread_does_all_tasks(tokens: int) -> None:
    given = case(tokens, 2, 3, 65, 96)
    threads = numba.get_num_threads()
    numba.set_num_threads(1)
    try:
        alone = fused_experts(*given)
    finally:
        numba.set_num_threads(threads)
    # Who does a task changes no bit of it.
    assert torch.equal(alone, fused_experts(*given))


def test_a_token_may_choose_one_expert_twice() -> None:
    given = case(3, 2)
    given.ids[:] = 1
    assert_close(fused_experts(*given), brute_force(given, None))


@pytest.mark.parametrize("limit", [10.0, 0.0, None])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("tokens", [1, 30])
@pytest.mark.parametrize("gate", [-50.0, 50.0])
@pytest.mark.parametrize("up", [-50.0, 50.0])
def test_swiglu_limit(
    gate: float, up: float, tokens: int, dtype: torch.dtype, limit: float | None
) -> None:
    given = Case(
        torch.ones(tokens, 1).to(dtype),
        torch.tensor([[[gate], [up]]]).to(dtype),
        torch.ones(1, 1, 1).to(dtype),
        torch.ones(tokens, 1),
        torch.zeros(tokens, 1).long(),
    )
    got = fused_experts(*given, swiglu_limit=limit)
    assert_close(got, brute_force(given, limit), scale=2500)
    if limit and gate > 0:
        assert float(got[0]) == pytest.approx(limit * (limit if up > 0 else -limit), rel=1e-2)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_an_idle_rank_sends_no_tokens(dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    for kernel in ("experts_few", "group", "_up"):
        monkeypatch.setattr(cpu, kernel, None)
    monkeypatch.setattr(reference, "fused_experts", None)
    hidden = torch.zeros(0, 19).to(dtype)
    weights, ids = topk_routing(torch.zeros(0, 8), torch.zeros(8), 8)
    assert weights.shape == ids.shape == (0, 8)
    given = case(0, 1, 8, dtype=dtype)
    out = fused_experts(hidden, given.w13, given.w2, weights, ids, 10.0)
    assert out.shape == (0, 19)
    assert out.dtype == dtype


@pytest.mark.oracle("ascend_fused_moe::fused_experts", "transformers' DeepseekV4Experts")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@torch.no_grad()
def test_equals_transformers(dtype: torch.dtype) -> None:
    from transformers import DeepseekV4Config
    from transformers.models.deepseek_v4.modeling_deepseek_v4 import DeepseekV4Experts

    config = DeepseekV4Config(
        hidden_size=24, moe_intermediate_size=20, n_routed_experts=5, swiglu_limit=0.5
    )
    config._experts_implementation = "eager"
    for tokens in (2, 40):
        given = case(tokens, 3, 5, 24, 20, dtype)
        module = DeepseekV4Experts(config).to(dtype)
        module.gate_up_proj.copy_(given.w13)
        module.down_proj.copy_(given.w2)
        expected = module(given.x, given.ids, given.weights)
        assert_close(fused_experts(*given, swiglu_limit=0.5), expected, scale=2)


@pytest.mark.parametrize("tokens", [3, 30])
def test_nan_stays_in_its_token(tokens: int) -> None:
    given = case(tokens)
    given.x[1, 2] = float("nan")
    out = fused_experts(*given, swiglu_limit=1.0)
    assert out[1].isnan().all()
    assert out[[t for t in range(tokens) if t != 1]].isfinite().all()


@pytest.mark.parametrize("tokens", [3, 30])
def test_strides_and_integer_dtypes(tokens: int) -> None:
    given = case(tokens)
    expected = brute_force(given, None)
    x = torch.empty(19, tokens).T.copy_(given.x)
    ids = torch.empty(3, tokens, dtype=torch.int32).T.copy_(given.ids)
    weights = torch.empty(tokens, 6)[:, ::2].copy_(given.weights)
    assert_close(fused_experts(x, given.w13, given.w2, weights, ids), expected)
    w13 = given.w13.transpose(1, 2).contiguous().transpose(1, 2)
    assert_close(fused_experts(x, w13, given.w2, weights, ids), expected)


def test_gradients_use_the_definition() -> None:
    given = case(3)
    for tensor in (given.x, given.w13, given.w2, given.weights):
        tensor.requires_grad_()
    fused_experts(*given, swiglu_limit=1.0).square().sum().backward()
    for tensor in (given.x, given.w13, given.w2, given.weights):
        assert tensor.grad is not None
        assert tensor.grad.abs().sum() > 0


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("tokens", [0, 1, 3, 17, 65])
@pytest.mark.parametrize("inter", [1, 37, 50])
def test_a_shared_expert_is_added(tokens: int, inter: int, dtype: torch.dtype) -> None:
    given = case(tokens, dtype=dtype)
    shared = (
        (torch.randn(2 * inter, 19) / 19**0.5).to(dtype),
        (torch.randn(19, inter) / inter**0.5).to(dtype),
    )
    as_routed = Case(
        given.x,
        shared[0].unsqueeze(0),
        shared[1].unsqueeze(0),
        torch.ones(tokens, 1),
        torch.zeros(tokens, 1, dtype=torch.int64),
    )
    expected = brute_force(given, 0.5) + brute_force(as_routed, 0.5)
    got = fused_experts(*given, swiglu_limit=0.5, shared=shared)
    assert got.dtype == dtype
    assert_close(got, expected, scale=2)


def test_a_shared_expert_of_another_shape_is_named() -> None:
    with pytest.raises(InvalidInputError, match=r"\(6, 18\) and \(19, 3\).*\[2S, H\].*H=19"):
        fused_experts(*case(2), shared=(torch.zeros(6, 18), torch.zeros(19, 3)))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("native", [False, True])
@pytest.mark.parametrize("tokens", [2, 70])
@pytest.mark.parametrize("expert", [-1, 5])
def test_an_id_outside_the_experts_is_named(
    expert: int, tokens: int, native: bool, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cpu, "_torch_is_faster", lambda: native)
    given = case(tokens, dtype=dtype)
    given.ids[1, 1] = expert
    with pytest.raises(InvalidInputError, match=rf"expert id {expert}.*5 experts.*padding"):
        fused_experts(*given)


def test_bad_input_names_both_sides() -> None:
    x, w13, w2, weights, ids = case(2)
    with pytest.raises(InvalidInputError, match=r"x \(2, 18\).*\[E, 2I, H\].*layout"):
        fused_experts(x[:, :18], w13, w2, weights, ids)
    with pytest.raises(InvalidInputError, match=r"w13 \(5, 73, 19\), w2 \(5, 19, 36\)"):
        fused_experts(x, w13[:, :73], w2[..., :36], weights, ids)
    with pytest.raises(InvalidInputError, match=r"weights \(2, 2\) and ids \(2, 3\).*T=2"):
        fused_experts(x, w13, w2, weights[:, :2], ids)
    with pytest.raises(InvalidInputError, match=r"ids \(1, 3\).*T=2.*exactly the tokens"):
        fused_experts(x, w13, w2, weights[:1], ids[:1])
    with pytest.raises(InvalidInputError, match=r"swiglu_limit=-1.*positive"):
        fused_experts(x, w13, w2, weights, ids, -1.0)
