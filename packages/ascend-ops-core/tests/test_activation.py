"""The limited SwiGLU (bug case 7: no limit, a limit on both sides of the gate, a wrong place)."""

from __future__ import annotations

import math

import pytest
import torch
from ascend_ops_core import InvalidInputError
from ascend_ops_core.ops.activation import silu_and_mul_with_clamp
from ascend_ops_core.testing import assert_close
from hypothesis import given
from hypothesis import strategies as st

DTYPES = (torch.float32, torch.bfloat16, torch.float16)


def scalar(gate: float, up: float, limit: float | None) -> float:
    if limit:
        gate = min(gate, limit)
        up = max(-limit, min(up, limit))
    return gate / (1 + math.exp(-gate)) * up if gate > -700 else 0.0


@pytest.mark.parametrize("gate", [-50.0, 50.0])
@pytest.mark.parametrize("up", [-50.0, 50.0])
@pytest.mark.parametrize("limit", [10.0, 0.0, None])
def test_gate_is_clamped_above_only_and_up_on_both_sides(
    gate: float, up: float, limit: float | None
) -> None:
    got = silu_and_mul_with_clamp(torch.tensor([[gate, up]]), limit)
    assert_close(got, torch.tensor([[scalar(gate, up, limit)]]), scale=abs(gate * up))


def test_a_strongly_negative_gate_is_not_lifted_to_the_limit() -> None:
    got = float(silu_and_mul_with_clamp(torch.tensor([-3.0, 1.0]), 1.0))
    assert got == pytest.approx(scalar(-3.0, 1.0, None))
    assert got != pytest.approx(scalar(-1.0, 1.0, None))


@given(
    st.lists(
        st.tuples(st.floats(-60, 60, width=32), st.floats(-60, 60, width=32)),
        min_size=1,
        max_size=9,
    ),
    st.sampled_from([None, 0.0, 0.5, 2.0, 10.0]),
)
def test_equals_the_scalar_definition(
    pairs: list[tuple[float, float]], limit: float | None
) -> None:
    gate_up = torch.tensor([g for g, _ in pairs] + [u for _, u in pairs])
    expected = torch.tensor([scalar(g, u, limit) for g, u in pairs])
    assert_close(silu_and_mul_with_clamp(gate_up, limit), expected, scale=3600)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("tokens", [0, 1, 17])
def test_equals_transformers(tokens: int, dtype: torch.dtype) -> None:
    from transformers import DeepseekV4Config
    from transformers.models.deepseek_v4.modeling_deepseek_v4 import DeepseekV4Experts

    config = DeepseekV4Config(
        hidden_size=4, moe_intermediate_size=11, n_routed_experts=1, swiglu_limit=1.5
    )
    gate_up = (3 * torch.randn(tokens, 22)).to(dtype)
    got = silu_and_mul_with_clamp(gate_up, 1.5)
    assert got.dtype == dtype
    assert_close(got, DeepseekV4Experts(config)._apply_gate(gate_up))


def test_leading_axes_and_gradients() -> None:
    gate_up = torch.randn(2, 3, 8, requires_grad=True)
    out = silu_and_mul_with_clamp(gate_up, 1.0)
    assert out.shape == (2, 3, 4)
    out.sum().backward()
    assert gate_up.grad is not None
    clamped = gate_up[..., :4] > 1.0
    assert torch.equal(gate_up.grad[..., :4][clamped], torch.zeros(int(clamped.sum())))


def test_bad_input_names_value_limit_and_remedy() -> None:
    with pytest.raises(InvalidInputError, match=r"swiglu_limit=-1.*positive.*0 or null"):
        silu_and_mul_with_clamp(torch.zeros(1, 2), -1.0)
    with pytest.raises(InvalidInputError, match=r"width 3.*equal halves.*same width"):
        silu_and_mul_with_clamp(torch.zeros(1, 3), None)
