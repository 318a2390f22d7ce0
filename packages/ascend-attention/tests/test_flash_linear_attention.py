"""The functions of flash-linear-attention against transformers' definitions of them."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from ascend_attention import flash_linear_attention as fla
from ascend_ops_core import InvalidInputError
from ascend_ops_core.cases import Inputs
from ascend_ops_core.testing import assert_close

qwen = pytest.importorskip("transformers.models.qwen3_next.modeling_qwen3_next")
kimi = pytest.importorskip("transformers.models.kimi_linear.modeling_kimi_linear")


def inputs(batch: int, tokens: int, channels: bool, groups: int = 4) -> list[torch.Tensor]:
    new = Inputs()
    shape = (batch, tokens, 4, 16) if channels else (batch, tokens, 4)
    query, key = (new.randn(batch, tokens, groups, 16) for _ in "qk")
    value = new.randn(batch, tokens, 4, 8)
    return [query, key, value, -new.rand(*shape), new.rand(batch, tokens, 4)]


@pytest.mark.parametrize("tokens", [1, 64, 70])
@pytest.mark.parametrize(
    ("ours", "theirs", "channels", "groups"),
    [
        (fla.chunk_gated_delta_rule, qwen.torch_chunk_gated_delta_rule, False, 2),
        (fla.fused_recurrent_gated_delta_rule, qwen.torch_recurrent_gated_delta_rule, False, 2),
        (fla.chunk_kda, kimi.chunk_kimi_delta_attention, True, 4),
        (fla.fused_recurrent_kda, kimi.recurrent_kimi_delta_attention, True, 4),
    ],
    ids=["chunk", "recurrent", "chunk kda", "recurrent kda"],
)
def test_they_equal_transformers(
    ours: Any, theirs: Any, channels: bool, groups: int, tokens: int
) -> None:
    """Both halves of a sequence, the second from the state of the first."""
    query, key, value, g, beta = inputs(2, tokens, channels, groups)
    first = Inputs(seed=1).randn(2, 4, 16, 8)
    kind = {"use_qk_l2norm_in_kernel": True, "output_final_state": True}
    tensors = {"g": g, "beta": beta, "initial_state": first}
    right, state = theirs(query, key, value, **tensors, **kind)
    out, final = ours(query, key, value, **tensors, **kind)
    assert_close(out, right)
    assert_close(final, state)


@pytest.mark.parametrize("name", ["chunk_kda", "fused_recurrent_kda"])
def test_a_ragged_batch_equals_its_sequences(name: str) -> None:
    run = getattr(fla, name)
    tensors = inputs(1, 20, True)
    bounds = torch.tensor([0, 7, 7, 20])
    state = Inputs(seed=1).randn(3, 4, 16, 8)
    out, final = run(*tensors, initial_state=state, output_final_state=True, cu_seqlens=bounds)
    for r, (first, last) in enumerate([(0, 7), (7, 7), (7, 20)]):
        part = [x[:, first:last] for x in tensors]
        one, end = run(*part, initial_state=state[r : r + 1], output_final_state=True)
        assert_close(out[:, first:last], one)
        assert_close(final[r : r + 1], end)


def test_layouts_of_states_and_what_is_left_out() -> None:
    query, key, value, g, beta = inputs(1, 5, False)
    state = Inputs(seed=1).randn(1, 4, 16, 8)
    out, final = fla.chunk_gated_delta_rule(
        query, key, value, g, beta, initial_state=state, output_final_state=True
    )
    turned, after = fla.chunk_gated_delta_rule(
        query, key, value, g, beta, initial_state=state.mT, output_final_state=True,
        state_v_first=True,
    )  # fmt: skip
    assert torch.equal(turned, out)
    assert torch.equal(after.mT, final)
    assert fla.chunk_gated_delta_rule(query, key, value, g, beta)[1] is None
    zeros, ones = torch.zeros_like(g), torch.ones_like(beta)
    plain = fla.fused_recurrent_gated_delta_rule(query, key, value)[0]
    assert_close(
        plain, fla.fused_recurrent_gated_delta_rule(query, key, value, zeros, beta=ones)[0]
    )
    same = fla.fused_recurrent_gated_delta_rule(
        query, key, value, gk=g.unsqueeze(-1).expand(-1, -1, -1, 16), beta=beta
    )[0]
    assert_close(same, fla.fused_recurrent_gated_delta_rule(query, key, value, g, beta=beta)[0])


def test_bad_input_is_refused() -> None:
    query, key, value, g, beta = inputs(2, 5, False)
    run = fla.chunk_gated_delta_rule
    with pytest.raises(InvalidInputError, match="a batch of 2 with cu_seqlens"):
        run(query, key, value, g, beta, cu_seqlens=torch.tensor([0, 5]))
    with pytest.raises(InvalidInputError, match="initial_state of shape"):
        run(query, key, value, g, beta, initial_state=torch.zeros(2, 4, 8, 16))
    with pytest.raises(InvalidInputError, match="need a gradient"):
        run(query.requires_grad_(), key, value, g, beta)
    with pytest.raises(InvalidInputError, match="g and gk"):
        fla.fused_recurrent_gated_delta_rule(query.detach(), key, value, g, g)
