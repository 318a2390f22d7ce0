"""Lightning attention against loops over tokens, and MiniMax-Text-01's layer in transformers."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch
from ascend_attention.ops.lightning_attention import (
    lightning_attention,
    lightning_decode,
    reference,
    slopes_of,
)
from ascend_attention.ops.lightning_attention.cases import CASES
from ascend_ops_core import InvalidInputError
from ascend_ops_core.cases import Case, Inputs
from ascend_ops_core.devices import facts_of
from ascend_ops_core.registry import find
from ascend_ops_core.testing import assert_close

CHUNKED, DECODE = (find(f"ascend_attention::{name}") for name in CASES)
SMALL = {name: [case for case in cases if not case.large] for name, cases in CASES.items()}
HEADS, WIDTH, INNER = 2, 8, 5


def loop(
    tokens: tuple[torch.Tensor, torch.Tensor, torch.Tensor],
    slopes: torch.Tensor,
    state: torch.Tensor,
) -> tuple[torch.Tensor, list[torch.Tensor]]:
    """One request, one token after the other, in float64: results, and the state behind each."""
    decay = torch.exp(-slopes.double()).view(-1, 1, 1)
    out, states, state = [], [], state.double()
    for q, k, v in zip(*(x.double() for x in tokens), strict=True):
        state = state * decay + k.unsqueeze(2) * v.unsqueeze(1)
        out.append((q.unsqueeze(2) * state).sum(1))
        states.append(state)
    empty = state.new_zeros(0, state.shape[0], state.shape[2])
    return torch.stack(out) if out else empty, states


@pytest.mark.oracle("ascend_attention::lightning_attention", "a loop over tokens in float64")
@pytest.mark.parametrize("case", SMALL["lightning_attention"], ids=str)
def test_chunks_equal_the_loop(case: Case) -> None:
    q, k, v, slopes, start, states, slots, has_state = case.arguments()
    wanted = torch.zeros(v.shape, dtype=torch.float64)
    after = None if states is None else states.double()
    for r, (first, last) in enumerate(itertools.pairwise(start.tolist())):
        slot = 1 if slots is None else int(slots[r])
        if slot < 1 or first == last:
            continue
        state = torch.zeros(q.shape[1], q.shape[2], v.shape[2])
        if states is not None and (has_state is None or has_state[r]):
            state = states[slot]
        mine = tuple(x[first:last] for x in (q, k, v))
        wanted[first:last], behind = loop(mine, slopes, state)
        if after is not None:
            after[slot] = behind[-1]
    for run in (CHUNKED, reference.lightning_attention):
        arguments = case.arguments()
        got = run(*arguments)
        assert got.dtype == v.dtype
        assert_close(got, wanted, scale=case.scale)
        if after is not None:
            assert_close(arguments[5], after, scale=case.scale)


@pytest.mark.oracle("ascend_attention::lightning_decode", "a loop over tokens in float64")
@pytest.mark.parametrize("case", SMALL["lightning_decode"], ids=str)
def test_steps_equal_the_loop(case: Case) -> None:
    q, k, v, slopes, start, states, slots, accepted = case.arguments()
    wanted, after = torch.zeros(v.shape, dtype=torch.float64), states.double()
    for r, (first, last) in enumerate(itertools.pairwise(start.tolist())):
        if slots[r, 0] < 1:
            continue
        column = 0 if accepted is None else int(accepted[r]) - 1
        mine = tuple(x[first:last] for x in (q, k, v))
        wanted[first:last], behind = loop(mine, slopes, states[slots[r, column]])
        for j, state in enumerate(behind):
            if slots[r, j] > 0:
                after[slots[r, j]] = state
    for run in (DECODE, reference.lightning_decode):
        arguments = case.arguments()
        got = run(*arguments)
        assert got.dtype == v.dtype
        assert_close(got, wanted, scale=case.scale)
        assert_close(arguments[5], after, scale=case.scale)


def test_equals_transformers() -> None:
    from transformers.models.minimax.configuration_minimax import MiniMaxConfig
    from transformers.models.minimax.modeling_minimax import MiniMaxLightningAttention

    config = MiniMaxConfig(
        hidden_size=32, num_attention_heads=4, head_dim=8, num_hidden_layers=3, block_size=16,
        layer_types=["linear_attention"] * 3,
    )  # fmt: skip
    layer = MiniMaxLightningAttention(config, 1)
    x = torch.randn(1, 50, 32)
    with torch.no_grad():
        got, state = layer(x, (x, x), None)
        packed = torch.nn.functional.silu(layer.qkv_proj(x))[0].view(50, 4, 24)
        q, k, v = packed.split(8, dim=2)
        slopes = slopes_of(4, 1, 3)
        states = torch.zeros(2, 4, 8, 8)
        mine = lightning_attention(
            q, k, v, slopes, torch.tensor([0, 50]), states=states, slots=torch.tensor([1])
        )
        gate = torch.sigmoid(layer.output_gate(x))
        assert_close(layer.out_proj(gate * layer.norm(mine.flatten(1)[None])), got, scale=5)
    assert_close(states[1], state[0], scale=10)


def _step(
    tokens: tuple[torch.Tensor, ...], slopes: torch.Tensor, states: torch.Tensor, slots: list[int],
    accepted: int,
) -> torch.Tensor:  # fmt: skip
    return lightning_decode(
        *tokens,
        slopes,
        torch.tensor([0, len(tokens[0])]),
        states,
        torch.tensor([slots]),
        torch.tensor([accepted]),
    )


@pytest.mark.parametrize("split", [[200], [1] * 20 + [180], [63, 64, 65, 8], [100, 0, 100]])
def test_a_prompt_may_be_split(split: list[int]) -> None:
    new = Inputs(seed=len(split))
    tokens = tuple(new.randn(200, HEADS, n, scale=0.5) for n in (WIDTH, WIDTH, INNER))
    slopes = slopes_of(HEADS, 0, 2)
    states, done, parts = new.full(float("nan"), 2, HEADS, WIDTH, INNER), 0, []
    for count in split:
        part = tuple(x[done : done + count] for x in tokens)
        start, held = torch.tensor([0, count]), torch.tensor([done > 0])
        got = lightning_attention(
            *part, slopes, start, states=states, slots=torch.tensor([1]), has_state=held
        )
        parts.append(got)
        done += count
    wanted, behind = loop(tokens, slopes, new.full(0, HEADS, WIDTH, INNER))
    assert_close(torch.cat(parts), wanted, scale=16)
    assert_close(states[1], behind[-1], scale=16)


def test_rejected_drafts_leave_no_trace() -> None:
    new = Inputs(seed=1)
    slopes, slots = slopes_of(HEADS, 0, 1), [3, 1, 2]
    states = new.full(0.0, 4, HEADS, WIDTH, INNER)
    real = tuple(new.randn(0, HEADS, n) for n in (WIDTH, WIDTH, INNER))
    taken = 1
    for count, accepted in [(3, 2), (3, 3), (1, 1), (2, 1), (3, 1)]:
        drafts = tuple(new.randn(count, HEADS, n) for n in (WIDTH, WIDTH, INNER))
        got = _step(drafts, slopes, states, slots, taken)
        whole = tuple(torch.cat(pair) for pair in zip(real, drafts, strict=True))
        wanted, _ = loop(whole, slopes, new.full(0, HEADS, WIDTH, INNER))
        assert_close(got, wanted[-count:], scale=8)
        real = tuple(torch.cat([a, b[:accepted]]) for a, b in zip(real, drafts, strict=True))
        taken = accepted


def test_slopes_of_odd_heads() -> None:
    assert_close(slopes_of(8, 0, 1), 2.0 ** -torch.arange(1, 9.0) * (1 + 1e-5))
    # Six heads: those of four, then every second one of eight.
    wanted = [2.0**-power for power in (2, 4, 6, 8, 1, 3)]
    assert_close(slopes_of(6, 3, 4), torch.tensor(wanted) * 1e-5)
    with pytest.raises(InvalidInputError, match="layers 0 to 3"):
        slopes_of(6, 4, 4)


def test_they_ask_the_host_for_nothing() -> None:
    for operator in (CHUNKED, DECODE):
        for case in SMALL[operator.name]:
            arguments = case.make(Inputs("meta"))
            got, fake = operator.reference(*arguments), operator.fake(*arguments)
            assert (got.device.type, got.shape, got.dtype) == ("meta", fake.shape, fake.dtype)


@pytest.mark.parametrize(
    "changed",
    [
        {"slots": torch.tensor([[4, 1]])},
        {"slots": torch.tensor([[1, 0]]), "accepted": torch.tensor([2])},
        {"accepted": torch.tensor([3])},
        {"query_start": torch.tensor([0, 3])},
    ],
    ids=["slot", "no slot", "accepted", "tokens"],
)
def test_what_lies_outside_is_refused_before_anything_is_written(changed: dict[str, Any]) -> None:
    states = torch.zeros(4, HEADS, WIDTH, INNER)
    q, v = torch.ones(2, HEADS, WIDTH), torch.ones(2, HEADS, INNER)
    arguments = {
        "query_start": torch.tensor([0, 2]),
        "states": states,
        "slots": torch.tensor([[1, 2]]),
        "accepted": torch.tensor([1]),
    } | changed
    with pytest.raises(IndexError, match="lie outside"):
        lightning_decode(q, q, v, torch.ones(HEADS), **arguments)
    assert states.eq(0).all()


Q = torch.ones(2, HEADS, WIDTH)
START, SLOTS = torch.tensor([0, 2]), torch.tensor([1])


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"key": Q[:1]}, "key of shape"),
        ({"value": Q.half()}, "value of torch.float16"),
        ({"slopes": torch.ones(3)}, "slopes of shape"),
        ({"query_start": START.float()}, "query_start of torch.float32"),
        ({"slots": None}, "states given, slots left out"),
        ({"states": None}, "states left out, slots given"),
        ({"states": torch.zeros(2, HEADS, WIDTH, WIDTH).int()}, "states of torch.int32"),
        ({"states": torch.zeros(2, HEADS, WIDTH)}, "states of shape"),
        ({"has_state": torch.ones(1)}, "has_state of torch.float32"),
    ],
)
def test_bad_input_is_refused(changed: dict[str, Any], message: str) -> None:
    arguments: dict[str, Any] = {
        "query": Q,
        "key": Q,
        "value": Q,
        "slopes": torch.ones(HEADS),
        "query_start": START,
        "states": torch.zeros(2, HEADS, WIDTH, WIDTH),
        "slots": SLOTS,
    }
    with pytest.raises(InvalidInputError, match=message):
        lightning_attention(**(arguments | changed))


def test_limits_of_the_kernels() -> None:
    facts = facts_of("A2")
    for operator in (CHUNKED, DECODE):
        arguments = list(SMALL[operator.name][2].make(Inputs("meta")))
        assert operator.choose(facts, *arguments).implementation == "triton"
        arguments[0] = arguments[1] = torch.empty(1, 1, 160, device="meta")
        choice = operator.choose(facts, *arguments)
        assert choice.implementation == "torch"
        assert "heads of 160" in choice.refused[0][1]
