"""L2 norm, gates, split and states of linear attention against independent formulas."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from ascend_attention.ops.l2_norm import l2_norm
from ascend_attention.ops.l2_norm.cases import CASES as NORMS
from ascend_attention.ops.linear_gates import gdn_gates, kda_gates
from ascend_attention.ops.linear_gates.cases import CASES as GATES
from ascend_attention.ops.linear_states import clear_states, copy_states
from ascend_attention.ops.linear_states.cases import CASES as STATES
from ascend_attention.ops.projection_split import split_qkvz_ba
from ascend_attention.ops.projection_split.cases import CASES as SPLITS
from ascend_ops_core import InvalidInputError
from ascend_ops_core.cases import Case, Inputs
from ascend_ops_core.devices import facts_of
from ascend_ops_core.registry import find
from ascend_ops_core.testing import assert_close

ALL = {
    name: [case for case in cases if not case.large]
    for table in (NORMS, GATES, SPLITS, STATES)
    for name, cases in table.items()
}


def runs(name: str) -> tuple[Any, Any]:
    operator = find(f"ascend_attention::{name}")
    return operator, operator.reference


@pytest.mark.oracle("ascend_attention::l2_norm", "torch's vector_norm in float64")
@pytest.mark.parametrize("case", ALL["l2_norm"], ids=str)
def test_l2_norm(case: Case) -> None:
    for run in runs("l2_norm"):
        x, eps, scale, dtype = case.arguments()
        length = torch.linalg.vector_norm(x.double(), dim=-1, keepdim=True)
        got = run(x, eps, scale, dtype)
        assert got.dtype == dtype
        assert got.is_contiguous()
        assert_close(got, x.double() / (length**2 + eps).sqrt() * scale)


def test_l2_norm_of_transformers() -> None:
    from transformers.models.qwen3_next.modeling_qwen3_next import l2norm

    x = torch.randn(5, 3, 16)
    assert_close(l2_norm(x), l2norm(x, dim=-1, eps=1e-6))


def _softplus(x: float) -> float:
    return x if x > 30 else math.log1p(math.exp(x))


@pytest.mark.oracle("ascend_attention::gdn_gates", "Python's floats, value by value")
@pytest.mark.parametrize("case", ALL["gdn_gates"], ids=str)
def test_gdn_gates(case: Case) -> None:
    for run in runs("gdn_gates"):
        a, b, a_log, dt_bias, beta_dtype = case.arguments()
        got = run(a, b, a_log, dt_bias, beta_dtype)
        wanted = torch.zeros(2, *a.shape, dtype=torch.float64)
        for t in range(a.shape[0]):
            for h in range(a.shape[1]):
                wanted[0, t, h] = -math.exp(a_log[h]) * _softplus(
                    float(a[t, h]) + float(dt_bias[h])
                )
                wanted[1, t, h] = 1 / (1 + math.exp(-float(b[t, h])))
        for one, right, dtype in zip(got, wanted, (torch.float32, beta_dtype), strict=True):
            assert one.dtype == dtype
            assert_close(one, right)


@pytest.mark.oracle("ascend_attention::kda_gates", "Python's floats, value by value")
@pytest.mark.parametrize("case", ALL["kda_gates"], ids=str)
def test_kda_gates(case: Case) -> None:
    f, b, a_log, dt_bias, bound = case.arguments()
    decay, beta = kda_gates(f, b, a_log, dt_bias, lower_bound=bound)
    wanted = torch.zeros(f.shape, dtype=torch.float64)
    for t, h, d in torch.cartesian_prod(*(torch.arange(n) for n in f.shape)).tolist():
        r, rate = float(f[t, h, d]) + float(dt_bias[h, d]), math.exp(a_log[h])
        if bound is None:
            wanted[t, h, d] = -rate * _softplus(r)
        else:
            wanted[t, h, d] = bound / (1 + math.exp(-rate * r)) if rate * r > -700 else 0.0
    assert decay.dtype == beta.dtype == torch.float32
    assert_close(decay, wanted)
    assert_close(beta, b.double().sigmoid())


@pytest.mark.oracle(
    "ascend_attention::split_qkvz_ba", "transformers' Qwen3NextGatedDeltaNet, and places by hand"
)
@pytest.mark.parametrize("case", ALL["split_qkvz_ba"], ids=str)
def test_split(case: Case) -> None:
    for run in runs("split_qkvz_ba"):
        qkvz, ba, key_heads, value_heads, key_width, value_width = case.arguments()
        packed, gate, b, a = run(qkvz, ba, key_heads, value_heads, key_width, value_width)
        group = value_heads // key_heads
        of_head = 2 * key_width + 2 * group * value_width
        for h in range(key_heads):
            at = h * of_head
            for part in range(2):
                to = (part * key_heads + h) * key_width
                found = packed[:, to : to + key_width]
                assert torch.equal(found, qkvz[:, at : at + key_width])
                at += key_width
            for one in range(group):
                head = h * group + one
                to = 2 * key_heads * key_width + head * value_width
                first = at + one * value_width
                value = qkvz[:, first : first + value_width]
                assert torch.equal(packed[:, to : to + value_width], value)
                first += group * value_width
                assert torch.equal(gate[:, head], qkvz[:, first : first + value_width])
                assert torch.equal(b[:, head], ba[:, 2 * h * group + one])
                assert torch.equal(a[:, head], ba[:, (2 * h + 1) * group + one])
        assert all(one.is_contiguous() for one in (packed, gate, b, a))


def test_split_of_transformers() -> None:
    from transformers.models.qwen3_next.configuration_qwen3_next import Qwen3NextConfig
    from transformers.models.qwen3_next.modeling_qwen3_next import Qwen3NextGatedDeltaNet

    config = Qwen3NextConfig(
        hidden_size=16, linear_num_key_heads=2, linear_num_value_heads=6,
        linear_key_head_dim=8, linear_value_head_dim=4,
    )  # fmt: skip
    layer = Qwen3NextGatedDeltaNet(config, 0)
    qkvz, ba = torch.randn(3, 2 * 16 + 2 * 24), torch.randn(3, 12)
    *qkv, z, b, a = layer.fix_query_key_value_ordering(qkvz[None], ba[None])
    got = split_qkvz_ba(qkvz, ba, 2, 6, 8, 4)
    assert torch.equal(got[0], torch.cat([x[0].flatten(1) for x in qkv], dim=1))
    for one, other in zip(got[1:], (z, b, a), strict=True):
        assert torch.equal(one, other[0])


@pytest.mark.oracle("ascend_attention::clear_states", "a loop over slots")
@pytest.mark.parametrize("case", ALL["clear_states"], ids=str)
def test_clear_states(case: Case) -> None:
    wanted, slots, cleared = case.arguments()
    for n, slot in enumerate(slots.tolist()):
        if slot > 0 and (cleared is None or cleared[n]):
            wanted[slot] = 0
    arguments = case.arguments()
    clear_states(*arguments)
    torch.testing.assert_close(arguments[0], wanted, rtol=0, atol=0, equal_nan=True)


@pytest.mark.oracle("ascend_attention::copy_states", "a loop over requests")
@pytest.mark.parametrize("case", ALL["copy_states"], ids=str)
def test_copy_states(case: Case) -> None:
    wanted, table, source, destination, shift = case.arguments()
    for r, (start, to) in enumerate(zip(source.tolist(), destination.tolist(), strict=True)):
        if start < 0 or start == to or table[r, start] < 1:
            continue
        rows = wanted[table[r, start]].clone()
        if shift is None:
            wanted[table[r, to]] = rows
        else:
            by = int(shift[r])
            wanted[table[r, to], : len(rows) - by] = rows[by:]
    arguments = case.arguments()
    copy_states(*arguments)
    assert torch.equal(arguments[0], wanted)


def test_they_ask_the_host_for_nothing() -> None:
    for name, cases in ALL.items():
        operator = find(f"ascend_attention::{name}")
        for case in cases:
            arguments = case.make(Inputs("meta"))
            got, fake = operator.reference(*arguments), operator.fake(*arguments)
            if got is None:
                assert fake is None
                continue
            pairs = zip(*((x if isinstance(x, tuple) else (x,)) for x in (got, fake)), strict=True)
            for one, other in pairs:
                assert (one.device.type, one.shape, one.dtype) == ("meta", other.shape, other.dtype)


X, INDEX = torch.ones(2, 4), torch.ones(2, dtype=torch.int32)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: l2_norm(X.double()), "x of torch.float64"),
        (lambda: l2_norm(torch.ones(())), "x without an axis"),
        (lambda: l2_norm(X, dtype=torch.int8), "dtype=torch.int8"),
        (lambda: l2_norm(X, scale=0.0), "scale=0.0"),
        (lambda: gdn_gates(X, X[:1], X[0], X[0]), "b of shape"),
        (lambda: gdn_gates(X, X, X[0, :1], X[0]), "a_log of shape"),
        (lambda: gdn_gates(X, X, X[0], X[0], beta_dtype=torch.int8), "beta_dtype=torch.int8"),
        (lambda: kda_gates(X[None], X[:1, :2], X[0, :2], X[0]), "dt_bias of shape"),
        (lambda: kda_gates(X[None], X[:1, :2], X[0, :2], X, lower_bound=0.0), "lower_bound=0"),
        (lambda: kda_gates(X[None], X[:1, :2], X[0, :2], X, lower_bound=-6.0), "lower_bound=-6"),
        (lambda: split_qkvz_ba(X, X, 2, 3, 1, 1), "value_heads=3"),
        (lambda: split_qkvz_ba(X, X, 1, 1, 1, 2), "qkvz of shape"),
        (lambda: split_qkvz_ba(X, X, 1, 1, 0, 1), "key_width=0"),
        (lambda: clear_states(X, INDEX[None]), "slots of shape"),
        (lambda: clear_states(X, INDEX, INDEX), "cleared of torch.int32"),
        (lambda: clear_states(X[:0], INDEX), "slots need a state"),
        (lambda: copy_states(X, INDEX, INDEX, INDEX), "block_table of shape"),
        (lambda: copy_states(X, INDEX[None], INDEX, INDEX), "source of shape"),
        (lambda: copy_states(X[0], INDEX[:, None], INDEX, INDEX, INDEX), "axes of states"),
    ],
)
def test_bad_input_is_refused(call: Any, message: str) -> None:
    with pytest.raises(InvalidInputError, match=message):
        call()


@pytest.mark.parametrize(
    ("name", "place", "shape", "reason"),
    [
        ("l2_norm", 0, (2, 3000), "rows of width 3000"),
        ("gdn_gates", 0, (2, 600), "600 heads"),
        ("kda_gates", 0, (2, 2, 600), "heads of 600"),
    ],
)
def test_limits(name: str, place: int, shape: tuple[int, ...], reason: str) -> None:
    operator, facts = find(f"ascend_attention::{name}"), facts_of("A2")
    arguments = list(ALL[name][1].make(Inputs("meta")))
    assert operator.choose(facts, *arguments).implementation == "triton"
    arguments[place] = torch.empty(shape, device="meta")
    choice = operator.choose(facts, *arguments)
    assert choice.implementation == "torch"
    assert reason in choice.refused[0][1]


def test_states_with_gaps_inside_run_in_torch() -> None:
    states = torch.empty(4, 3, 8, device="meta")[:, :, :5]
    arguments = (states, torch.empty(2, dtype=torch.int32, device="meta"), None)
    choice = find("ascend_attention::clear_states").choose(facts_of("A2"), *arguments)
    assert choice.implementation == "torch"
    assert "gaps inside" in choice.refused[0][1]
