"""Hyper-connections against transformers' modules, Sinkhorn's promise, and the CPU kernels."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from ascend_ops_core.devices import facts_of
from ascend_ops_core.errors import InvalidInputError
from ascend_ops_core.layers.hyper_connection import HyperConnection, HyperHead
from ascend_ops_core.ops.hyper_connection import (
    HyperConnectionPlan,
    hc_head,
    hc_post,
    hc_pre,
    npu,
    reference,
    sinkhorn,
)
from ascend_ops_core.testing import assert_close

TOKENS = (0, 1, 3, 4, 5, 16, 17, 65)
EPS = 1e-6
ITERATIONS = 20


def parameters(n: int, hidden: int) -> dict[str, Any]:
    mixes = (2 + n) * n
    return {
        "fn": torch.randn(mixes, n * hidden) / (n * hidden) ** 0.5,
        "scale": 1 + 0.2 * torch.randn(3),
        "base": 0.5 * torch.randn(mixes),
        "norm_weight": 1 + 0.1 * torch.randn(hidden),
        "sinkhorn_iters": ITERATIONS,
        "hc_eps": EPS,
        "norm_eps": EPS,
    }


def by_definition(streams: torch.Tensor, given: dict[str, Any]) -> tuple[torch.Tensor, Any]:
    collapsed, *plan = reference.hc_pre(
        streams,
        given["fn"],
        given["scale"],
        given["base"],
        given["sinkhorn_iters"],
        given["hc_eps"],
        given["norm_eps"],
        given["norm_weight"],
    )
    return collapsed, HyperConnectionPlan(*plan)


def oracle_config(n: int, hidden: int) -> Any:
    from transformers import DeepseekV4Config

    return DeepseekV4Config(
        num_hidden_layers=1,
        hidden_size=hidden,
        hc_mult=n,
        hc_sinkhorn_iters=ITERATIONS,
        hc_eps=EPS,
        rms_norm_eps=EPS,
    )


@pytest.mark.oracle("ascend_ops_core::hc_pre", "transformers' DeepseekV4HyperConnection")
@pytest.mark.oracle("ascend_ops_core::hc_post", "transformers' DeepSeek-V4 decoder layer")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("n", [1, 2, 4])
@torch.no_grad()
def test_equals_transformers(n: int, dtype: torch.dtype) -> None:
    from transformers.models.deepseek_v4.modeling_deepseek_v4 import (
        DeepseekV4HyperConnection,
        DeepseekV4RMSNorm,
    )

    hidden, given = 19, parameters(n, 19)
    module = DeepseekV4HyperConnection(oracle_config(n, hidden))
    norm = DeepseekV4RMSNorm(hidden, EPS)
    for parameter, value in (
        (module.fn, given["fn"]),
        (module.base, given["base"]),
        (module.scale, given["scale"]),
        (norm.weight, given["norm_weight"]),
    ):
        parameter.copy_(value)
    for tokens in (1, 3, 7, 20):
        streams = torch.randn(tokens, n, hidden).to(dtype)
        post, comb, collapsed = module(streams[None])
        got, plan = hc_pre(streams, **given)
        assert got.dtype == dtype
        assert_close(got, norm(collapsed)[0])
        assert_close(plan.post, post[0])
        assert_close(plan.comb, comb[0])
        output = torch.randn(tokens, hidden).to(dtype)
        expected = post[0].unsqueeze(-1) * output.unsqueeze(-2) + torch.matmul(
            comb[0].transpose(-1, -2), streams.float()
        )
        back = hc_post(output, streams, plan)
        assert back.dtype == dtype
        assert_close(back, expected)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("tokens", TOKENS)
@pytest.mark.parametrize("n", [1, 3])
def test_kernels_equal_the_definition(tokens: int, n: int, dtype: torch.dtype) -> None:
    torch.manual_seed(tokens)
    streams, given = torch.randn(tokens, n, 13).to(dtype), parameters(n, 13)
    got, plan = hc_pre(streams, **given)
    expected, expected_plan = by_definition(streams, given)
    assert got.dtype == expected.dtype == dtype
    assert_close(got, expected)
    assert_close(plan.post, expected_plan.post)
    assert_close(plan.comb, expected_plan.comb)
    output = torch.randn(tokens, 13).to(dtype)
    assert_close(hc_post(output, streams, plan), reference.hc_post(output, streams, *plan))


@pytest.mark.oracle("ascend_ops_core::hc_head", "transformers' DeepseekV4HyperHead")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@torch.no_grad()
def test_head_equals_transformers(dtype: torch.dtype) -> None:
    from transformers.models.deepseek_v4.modeling_deepseek_v4 import DeepseekV4HyperHead

    module = DeepseekV4HyperHead(oracle_config(4, 11))
    for parameter in module.parameters():
        parameter.normal_()
    for tokens in (0, 1, 17):
        streams = torch.randn(tokens, 4, 11).to(dtype)
        got = hc_head(
            streams, module.hc_fn, module.hc_scale, module.hc_base, hc_eps=EPS, norm_eps=EPS
        )
        assert got.dtype == dtype
        assert_close(got, module(streams[None])[0])


@pytest.mark.parametrize("tokens", [2, 6])
@pytest.mark.parametrize("n", [1, 2, 4, 8])
def test_comb_is_doubly_stochastic(n: int, tokens: int) -> None:
    given = parameters(n, 16) | {"sinkhorn_iters": 60}
    _, plan = hc_pre(torch.randn(tokens, n, 16), **given)
    assert (plan.comb > 0).all()
    torch.testing.assert_close(plan.comb.sum(-1), torch.ones(tokens, n), rtol=0, atol=1e-3)
    torch.testing.assert_close(plan.comb.sum(-2), torch.ones(tokens, n), rtol=0, atol=1e-4)
    assert (plan.post > 0).all()
    assert (plan.post < 2).all()


@pytest.mark.parametrize("tokens", [1, 5])
def test_one_iteration_normalises_columns_only(tokens: int) -> None:
    given = parameters(3, 16) | {"sinkhorn_iters": 1}
    streams = torch.randn(tokens, 3, 16)
    _, plan = hc_pre(streams, **given)
    assert_close(plan.comb, by_definition(streams, given)[1].comb)
    torch.testing.assert_close(plan.comb.sum(-2), torch.ones(tokens, 3), rtol=0, atol=1e-5)
    assert (plan.comb.sum(-1) - 1).abs().max() > 1e-2


def test_comb_flows_from_its_first_axis_to_its_second() -> None:
    streams = torch.tensor([[[1.0], [10.0]]])
    plan = HyperConnectionPlan(torch.zeros(1, 2), torch.tensor([[[0.0, 1.0], [0.5, 0.0]]]))
    assert hc_post(torch.zeros(1, 1), streams, plan).flatten().tolist() == [5.0, 1.0]


def test_a_layer_that_outputs_nothing_keeps_the_mean_stream() -> None:
    # Columns of comb sum to one, so the mixing alone cannot blow streams up.
    given, streams = parameters(4, 8), torch.randn(6, 4, 8)
    _, plan = hc_pre(streams, **given)
    mixed = hc_post(torch.zeros(6, 8), streams, plan)
    assert mixed.norm() <= streams.norm() * 1.01


def test_extreme_weights_stay_finite() -> None:
    given = parameters(4, 8)
    given["base"] = given["base"] * 1e4
    for tokens in (1, 8):
        streams = 1e3 * torch.randn(tokens, 4, 8)
        got, plan = hc_pre(streams, **given)
        assert got.isfinite().all()
        assert plan.comb.isfinite().all()
        assert_close(plan.comb, by_definition(streams, given)[1].comb)


@pytest.mark.parametrize("tokens", [3, 6])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_nan_stays_in_its_token(tokens: int, dtype: torch.dtype) -> None:
    streams, given = torch.randn(tokens, 2, 8).to(dtype), parameters(2, 8)
    streams[1, 0, 3] = float("nan")
    got, plan = hc_pre(streams, **given)
    back = hc_post(got, streams, plan)
    others = [t for t in range(tokens) if t != 1]
    assert got[1].isnan().all()
    assert back[1].isnan().all()
    assert got[others].isfinite().all()
    assert back[others].isfinite().all()


def test_strided_streams() -> None:
    streams, given = torch.randn(2, 5, 8).transpose(0, 1), parameters(2, 8)
    got, plan = hc_pre(streams, **given)
    expected, _ = hc_pre(streams.contiguous(), **given)
    assert_close(got, expected)
    output = torch.randn(8, 5).T
    assert_close(
        hc_post(output, streams.contiguous(), plan), hc_post(output.contiguous(), streams, plan)
    )


def test_weights_of_another_dtype_are_converted_not_reinterpreted() -> None:
    streams, given = torch.randn(2, 2, 8), parameters(2, 8)
    rounded = given | {"base": given["base"].bfloat16(), "scale": given["scale"].bfloat16()}
    expected = given | {"base": rounded["base"].float(), "scale": rounded["scale"].float()}
    assert_close(hc_pre(streams, **rounded)[1].comb, hc_pre(streams, **expected)[1].comb)


def test_kernels_run_without_the_definition(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reference, "hc_pre", None)
    monkeypatch.setattr(reference, "hc_post", None)
    streams = torch.randn(2, 2, 8)
    got, plan = hc_pre(streams, **parameters(2, 8))
    assert hc_post(got, streams, plan).isfinite().all()


@pytest.mark.parametrize("name", ["fn", "scale", "base"])
def test_gradients_reach_every_weight(name: str) -> None:
    streams, given = torch.randn(3, 2, 8), parameters(2, 8)
    given[name].requires_grad_()
    got, plan = hc_pre(streams, **given)
    # Nothing but the plan needs a gradient here, and that must be enough.
    back = hc_post(got.detach(), streams, plan)
    (back * torch.randn_like(back)).sum().backward()
    assert given[name].grad is not None
    assert given[name].grad.abs().sum() > 0


def test_layers_hold_the_parameters_and_call_the_operators() -> None:
    given, streams = parameters(2, 8), torch.randn(5, 2, 8)
    layer = HyperConnection(2, 8, ITERATIONS, EPS, EPS)
    for name in ("fn", "scale", "base"):
        getattr(layer, name).data.copy_(given[name])
    got, plan = layer.pre(streams, given["norm_weight"])
    expected, expected_plan = hc_pre(streams, **given)
    assert torch.equal(got, expected)
    assert torch.equal(plan.comb, expected_plan.comb)
    assert torch.equal(layer.post(got, streams, plan), hc_post(got, streams, plan))
    head = HyperHead(2, 8, EPS, EPS)
    for parameter in head.parameters():
        parameter.data.normal_()
    expected = hc_head(streams, head.fn, head.scale, head.base, hc_eps=EPS, norm_eps=EPS)
    assert torch.equal(head(streams), expected)


@pytest.mark.oracle("ascend_ops_core::sinkhorn", "Sinkhorn's loops over the entries")
@pytest.mark.parametrize("n", [1, 3, 4])
def test_sinkhorn_equals_loops_over_the_entries(n: int) -> None:
    logits, eps = torch.randn(2, 3, n, n), 1e-3
    got = sinkhorn(logits, iters=4, eps=eps)
    for index in range(6):
        rows = [[v.exp().item() for v in row] for row in logits.view(6, n, n)[index].double()]
        m = [[v / sum(row) + eps for v in row] for row in rows]
        for step in range(4):
            if step:
                m = [[v / (sum(row) + eps) for v in row] for row in m]
            sums = [sum(row[k] for row in m) + eps for k in range(n)]
            m = [[row[k] / sums[k] for k in range(n)] for row in m]
        assert_close(got.view(6, n, n)[index], torch.tensor(m))


def test_bad_matrices_are_refused() -> None:
    with pytest.raises(InvalidInputError, match="square matrices"):
        sinkhorn(torch.randn(2, 3, 4), iters=2, eps=EPS)
    with pytest.raises(InvalidInputError, match="at least 1"):
        sinkhorn(torch.randn(2, 4, 4), iters=0, eps=EPS)


def test_limits_of_torch_npu() -> None:
    a2, a5 = facts_of("A2"), facts_of("A5")
    x = torch.empty(2, 4, 8, dtype=torch.bfloat16)
    comb, odd = torch.empty(2, 4, 4), torch.empty(2, 3, 8, dtype=torch.bfloat16)
    f = torch.empty(24, 32)

    def pre(facts: Any, streams: torch.Tensor, iters: int, fn: torch.Tensor) -> str:
        return npu.supports_hc_pre(facts, streams, fn, f[0], f[0], iters, EPS, EPS, f[0]).reason

    assert not pre(a5, x, 20, f)
    assert "documented for A5" in pre(a2, x, 20, f)
    assert "float16, bfloat16" in pre(a5, x.float(), 20, f)
    assert "3 streams" in pre(a5, odd, 20, f)
    assert "101 iterations" in pre(a5, x, 101, f)
    assert "fn of" in pre(a5, x, 20, f.half())
    assert "empty" in pre(a5, x[:0], 20, f)
    assert npu.supports_hc_post(a5, x[:, 0], x, comb[0], comb)
    assert "documented for A5" in npu.supports_hc_post(a2, x[:, 0], x, comb[0], comb).reason
    assert "one dtype" in npu.supports_hc_post(a5, x[:, 0].float(), x, comb[0], comb).reason
    assert npu.supports_sinkhorn(a5, comb, 1, EPS)
    assert "documented for A5" in npu.supports_sinkhorn(a2, comb, 1, EPS).reason
    assert "3 or 4" in npu.supports_sinkhorn(a5, comb[0], 1, EPS).reason
    assert "3 streams" in npu.supports_sinkhorn(a5, comb[:, :3, :3], 1, EPS).reason
    assert "float32" in npu.supports_sinkhorn(a5, comb.half(), 1, EPS).reason
    assert "empty" in npu.supports_sinkhorn(a5, comb[:0], 1, EPS).reason
    assert "float32" in npu.supports_sinkhorn_triton(a5, comb.half(), 1, EPS).reason
