"""The causal convolution against loops over requests and tokens."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from ascend_attention.ops.causal_conv import causal_conv1d, reference
from ascend_attention.ops.causal_conv.cases import CASES
from ascend_ops_core import InvalidInputError
from ascend_ops_core.cases import Case, Inputs
from ascend_ops_core.devices import facts_of
from ascend_ops_core.registry import find
from ascend_ops_core.testing import assert_close

OPERATOR = find("ascend_attention::causal_conv1d")
SMALL = [case for case in CASES["causal_conv1d"] if not case.large]
WIDTH, CHANNELS = 4, 6


def expected(arguments: tuple[Any, ...]) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Results in float64, and the states afterwards."""
    x, weight, start, bias, states, slots, has_state, accepted, _, silu = arguments
    width, channels = weight.shape
    out = torch.zeros(x.shape[0], channels, dtype=torch.float64)
    after = None if states is None else states.clone()
    for r in range(len(start) - 1):
        mine = x[start[r] : start[r + 1]]
        n = len(mine)
        slot = 1 if slots is None else int(slots[r])
        if slot < 1:
            continue
        history = torch.zeros(width - 1, channels, dtype=x.dtype)
        if states is not None and (has_state is None or has_state[r]):
            first = 0 if accepted is None else int(accepted[r]) - 1
            history = states[slot, first : first + width - 1]
        z = torch.cat([history.double(), mine.double()])
        for i in range(n):
            y = (weight.double() * z[i : i + width]).sum(0)
            y = y if bias is None else y + bias.double()
            out[start[r] + i] = torch.nn.functional.silu(y) if silu else y
        if after is not None and n:
            kept = z[n:] if accepted is None else z[1:]
            after[slot, : len(kept)] = kept.to(after.dtype)
    return out, after


@pytest.mark.oracle("ascend_attention::causal_conv1d", "loops over requests and tokens in float64")
@pytest.mark.parametrize("case", SMALL, ids=str)
def test_equals_loops(case: Case) -> None:
    wanted, states = expected(case.arguments())
    for run in (OPERATOR, reference.causal_conv1d):
        arguments = case.arguments()
        got = run(*arguments)
        assert got.dtype == arguments[0].dtype
        assert got.is_contiguous()
        assert_close(got, wanted, scale=case.scale)
        if states is not None:
            torch.testing.assert_close(arguments[4], states, rtol=0, atol=0, equal_nan=True)


def test_equals_the_layer_of_torch() -> None:
    x = torch.randn(9, CHANNELS)
    layer = torch.nn.Conv1d(CHANNELS, CHANNELS, WIDTH, groups=CHANNELS, padding=WIDTH - 1)
    wanted = torch.nn.functional.silu(layer(x.T[None])[0, :, :9]).T
    with torch.no_grad():
        weight = layer.weight[:, 0].T.contiguous()
        got = causal_conv1d(x, weight, torch.tensor([0, 9]), bias=layer.bias)
    assert_close(got, wanted.detach())


@pytest.mark.parametrize("split", [[11], [1] * 11, [3, 1, 7], [2, 2, 2, 2, 2, 1], [5, 0, 6]])
def test_chunks_of_a_prompt_give_the_same(split: list[int]) -> None:
    x, weight = torch.randn(11, CHANNELS), torch.randn(WIDTH, CHANNELS)
    whole = causal_conv1d(x, weight, torch.tensor([0, 11]))
    states = torch.full((3, WIDTH - 1, CHANNELS), float("nan"))
    parts, done = [], 0
    for count in split:
        parts.append(
            causal_conv1d(
                x[done : done + count],
                weight,
                torch.tensor([0, count]),
                states=states,
                slots=torch.tensor([2]),
                has_state=torch.tensor([done > 0]),
            )
        )
        done += count
    assert torch.equal(torch.cat(parts), whole)
    assert torch.equal(states[2], x[-WIDTH + 1 :])
    assert states[:2].isnan().all()


@pytest.mark.parametrize("width", [2, 3, 4])
def test_rejected_drafts_leave_no_trace(width: int) -> None:
    """Steps of up to four tokens, of which any number from one on is accepted."""
    new = Inputs(seed=width)
    drafts, weight = 3, new.randn(width, CHANNELS)
    states = new.full(float("nan"), 2, width - 1 + drafts, CHANNELS)
    slots = torch.tensor([1])
    real = new.randn(2, CHANNELS)
    causal_conv1d(
        real, weight, torch.tensor([0, 2]), states=states, slots=slots,
        has_state=torch.tensor([False]),
    )  # fmt: skip
    taken = 1
    for count, accepted in [(4, 1), (4, 4), (2, 2), (1, 1), (3, 2), (4, 3), (4, 1)]:
        tokens = new.randn(count, CHANNELS)
        got = causal_conv1d(
            tokens, weight, torch.tensor([0, count]), states=states, slots=slots,
            accepted=torch.tensor([taken]),
        )  # fmt: skip
        whole = torch.cat([real, tokens])
        wanted = causal_conv1d(whole, weight, torch.tensor([0, len(whole)]))
        assert torch.equal(got, wanted[-count:])
        real, taken = torch.cat([real, tokens[:accepted]]), accepted


def test_it_asks_the_host_for_nothing() -> None:
    for case in SMALL:
        arguments = case.make(Inputs("meta"))
        got, fake = OPERATOR.reference(*arguments), OPERATOR.fake(*arguments)
        assert (got.device.type, got.shape, got.dtype) == ("meta", fake.shape, fake.dtype)


@pytest.mark.parametrize(
    "changed",
    [
        {"slots": torch.tensor([3])},
        {"query_start": torch.tensor([0, 3])},
        {"query_start": torch.tensor([2, 1])},
        {"accepted": torch.tensor([0])},
        {"accepted": torch.tensor([3])},
    ],
    ids=["slot", "tokens", "order", "nothing accepted", "too many accepted"],
)
def test_what_lies_outside_is_refused_before_anything_is_written(changed: dict[str, Any]) -> None:
    states = torch.zeros(3, WIDTH, CHANNELS)
    arguments = {
        "query_start": torch.tensor([0, 2]),
        "slots": torch.tensor([1]),
        "accepted": torch.tensor([1]),
    } | changed
    with pytest.raises(IndexError, match="lie outside"):
        causal_conv1d(
            torch.ones(2, CHANNELS), torch.ones(WIDTH, CHANNELS), states=states, **arguments
        )
    assert states.eq(0).all()


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"x": torch.ones(2)}, "x of shape"),
        ({"weight": torch.ones(WIDTH, CHANNELS + 1)}, "weight of shape"),
        ({"weight": torch.ones(1, CHANNELS)}, "rows of weight=1"),
        ({"query_start": torch.zeros(2)}, "query_start of torch.float32"),
        ({"bias": torch.ones(1)}, "bias of shape"),
        ({"activation": "gelu"}, "activation='gelu'"),
        ({"states": None}, "slots without states"),
        ({"states": torch.zeros(3, 2, CHANNELS)}, "rows of a state=2"),
        ({"slots": None}, "states without slots"),
        ({"slots": torch.tensor([1, 2])}, "slots of shape"),
        ({"has_state": torch.tensor([1])}, "has_state of torch.int64"),
        ({"most_tokens": -1}, "most_tokens=-1"),
        ({"accepted": torch.tensor([1])}, "states of 3 rows hold 1 tokens"),
    ],
)
def test_bad_input_is_refused(changed: dict[str, Any], message: str) -> None:
    arguments: dict[str, Any] = {
        "x": torch.ones(2, CHANNELS),
        "weight": torch.ones(WIDTH, CHANNELS),
        "query_start": torch.tensor([0, 2]),
        "states": torch.zeros(3, WIDTH - 1, CHANNELS),
        "slots": torch.tensor([1]),
    }
    with pytest.raises(InvalidInputError, match=message):
        causal_conv1d(**(arguments | changed))


def test_limits_of_the_kernel() -> None:
    facts = facts_of("A3")
    arguments = list(SMALL[2].make(Inputs("meta")))
    assert OPERATOR.choose(facts, *arguments).implementation == "triton"
    arguments[1] = torch.empty(5, 1, device="meta")
    choice = OPERATOR.choose(facts, *arguments)
    assert choice.implementation == "torch"
    assert "5 taps" in choice.refused[0][1]
