"""The gated delta rule against a loop over time, values and channels in double precision."""

from __future__ import annotations

import math
from itertools import accumulate, pairwise
from typing import Any

import pytest
import torch
from ascend_attention.ops import gated_delta_rule as family
from ascend_attention.ops.gated_delta_rule import (
    CHUNK,
    chunk_gated_delta_rule,
    chunk_table,
    chunked,
    recurrent_gated_delta_rule,
    reference,
)
from ascend_attention.ops.gated_delta_rule.cases import CASES
from ascend_ops_core import InvalidInputError
from ascend_ops_core.cases import Case, Inputs
from ascend_ops_core.devices import facts_of
from ascend_ops_core.registry import find
from ascend_ops_core.testing import assert_close

RECURRENT = [case for case in CASES["recurrent_gated_delta_rule"] if not case.large]
CHUNKS = [case for case in CASES["chunk_gated_delta_rule"] if not case.large]
LENGTHS = (0, 1, 15, 16, 17, 63, 64, 65, 130, 1000)


def over_time(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    decay: torch.Tensor,
    beta: torch.Tensor,
    start: torch.Tensor,
    scale: float,
    normalize: bool = False,
) -> tuple[torch.Tensor, list[torch.Tensor]]:
    """Outputs of one request, and its state behind every token, head by head in float64."""
    tokens, heads, _ = value.shape
    out = torch.zeros(value.shape, dtype=torch.float64)
    states = [start.double().clone() for _ in range(tokens)]
    for h in range(heads):
        state = start[h].double()
        for t in range(tokens):
            q, k = (x[t, h * x.shape[1] // heads].double() for x in (query, key))
            if normalize:
                q, k = (x / math.sqrt(float(x @ x) + 1e-6) for x in (q, k))
            # Forgets along keys, then moves what it says about this key towards the value.
            state = state @ torch.diag(decay[t, h].double().exp().expand(len(k)))
            error = value[t, h].double() - state @ k
            state = state + float(beta[t, h]) * torch.outer(error, k)
            out[t, h] = state @ q * scale
            states[t][h] = state
    return out, states


def expected(arguments: tuple[Any, ...], chunks: bool) -> tuple[torch.Tensor, torch.Tensor]:
    """Outputs and states, the latter rounded to their dtype as they are written."""
    *tokens, state, bounds, slots, more, scale, normalize = arguments[:11]
    out = torch.zeros(tokens[2].shape, dtype=torch.float64)
    state = state.clone()
    for r, (first, last) in enumerate(pairwise(bounds.tolist())):
        rows = [int(slots[r])] if chunks else slots[r].tolist()
        start = rows[0 if chunks or more is None else int(more[r]) - 1]
        if start > 0:
            held = state[start] if not chunks or more[r] else torch.zeros_like(state[start])
            part = [x[first:last] for x in tokens]
            out[first:last], states = over_time(*part, held, scale, normalize)
            for j, one in enumerate(states):
                slot = rows[min(j, len(rows) - 1)]
                if slot > 0:
                    state[slot] = one.to(state.dtype)
    return out, state


@pytest.mark.oracle("ascend_attention::recurrent_gated_delta_rule", "loop over time, float64")
@pytest.mark.parametrize("case", RECURRENT, ids=str)
def test_recurrent_equals_a_loop_over_time(case: Case) -> None:
    out, state = expected(case.arguments(), chunks=False)
    for run in (recurrent_gated_delta_rule, reference.recurrent_gated_delta_rule):
        arguments = case.arguments()
        got = run(*arguments)
        assert got.dtype == arguments[2].dtype
        assert_close(got, out)
        assert_close(arguments[5], state)


@pytest.mark.oracle("ascend_attention::chunk_gated_delta_rule", "loop over time, float64")
@pytest.mark.parametrize("case", CHUNKS, ids=str)
def test_chunks_equal_a_loop_over_time(case: Case) -> None:
    out, state = expected(case.arguments(), chunks=True)
    for run in (chunk_gated_delta_rule, reference.chunk_gated_delta_rule):
        arguments = case.arguments()
        got = run(*arguments)
        assert got.dtype == arguments[2].dtype
        assert_close(got, out)
        assert_close(arguments[5], state)


def tokens_of(count: int, channels: bool, kind: str, new: Inputs) -> tuple[torch.Tensor, ...]:
    """Float64 tokens of two key heads and four value heads."""
    shape = (count, 4, 6) if channels else (count, 4)
    decay, beta = new.rand(*shape), new.rand(count, 4)
    if kind == "near zero":
        decay = decay * 1e-6
    elif kind == "steep":
        decay = torch.where(decay > 0.7, decay * 50, decay)
    elif kind == "beta 0":
        beta = beta * 0
    elif kind == "beta 1, keys alike":
        beta, decay = beta * 0 + 1, decay * 0
    query, key = (new.randn(count, 2, 6) for _ in "qk")
    if kind == "beta 1, keys alike":
        key = key[:1].expand(count, -1, -1) if count else key
    key = key / key.norm(dim=-1, keepdim=True)
    value = new.randn(count, 4, 5)
    return tuple(x.double() for x in (query, key, value, -decay, beta))


@pytest.mark.parametrize("kind", ["usual", "near zero", "steep", "beta 0", "beta 1, keys alike"])
@pytest.mark.parametrize("channels", [False, True], ids=["head", "channels"])
def test_chunks_equal_the_recurrence_in_double_precision(channels: bool, kind: str) -> None:
    """All lengths in one ragged batch; a slot behind them stays as it is."""
    new = Inputs()
    tokens = tokens_of(sum(LENGTHS) + 2, channels, kind, new)
    bounds = torch.tensor(list(accumulate(LENGTHS, initial=0)), dtype=torch.int32)
    start = new.randn(len(LENGTHS) + 2, 4, 5, 6).double()
    slots = torch.arange(1, len(LENGTHS) + 1, dtype=torch.int32)
    states = [start.clone() for _ in "cr"]
    by_chunks = chunked.chunk_gated_delta_rule(
        *tokens, states[0], bounds, slots, slots > 0, 0.4, False
    )
    by_token = reference.recurrent_gated_delta_rule(
        *tokens, states[1], bounds, slots[:, None], None, 0.4, False
    )
    torch.testing.assert_close(by_chunks, by_token, rtol=1e-10, atol=1e-10)
    torch.testing.assert_close(states[0], states[1], rtol=1e-10, atol=1e-10)
    for untouched in (0, 1, len(LENGTHS) + 1):
        assert torch.equal(states[0][untouched], start[untouched])


@pytest.mark.parametrize("channels", [False, True], ids=["head", "channels"])
def test_a_prompt_may_be_cut_anywhere(channels: bool) -> None:
    """Into steps of chunks and of single tokens, decode included."""
    new = Inputs()
    tokens = tuple(x.float() for x in tokens_of(150, channels, "usual", new))
    one = torch.ones(1, dtype=torch.int32)
    start = new.randn(2, 4, 5, 6)

    def run(cuts: list[int], state: torch.Tensor) -> torch.Tensor:
        outs = []
        for first, last in pairwise(cuts):
            part = [x[first:last] for x in tokens]
            bounds = one.new_tensor([0, last - first])
            if last - first == 1:
                outs.append(
                    recurrent_gated_delta_rule(*part, state, bounds, one[:, None], None, 0.4)
                )
            else:
                has = torch.tensor([True])
                outs.append(chunk_gated_delta_rule(*part, state, bounds, one, has, 0.4))
        return torch.cat(outs)

    whole = start.clone()
    right = run([0, 150], whole)
    for cuts in ([0, 1, 2, 64, 65, 150], [0, 63, 127, 149, 150], [0, 37, 101, 102, 103, 150]):
        state = start.clone()
        assert_close(run(cuts, state), right)
        assert_close(state, whole)


@pytest.mark.parametrize("channels", [False, True], ids=["head", "channels"])
def test_64k_tokens_do_not_drift(channels: bool) -> None:
    """Chunk after chunk in float32 from bfloat16 inputs, against the same chunks in float64.

    One head in four keeps nearly everything, so that an error would stay. Outputs are held to the
    tolerance of their dtype at the beginning and at the end, states to 2e-5.
    """
    new = Inputs()
    count, heads, width = 65_536, 4, 16
    query, key = (new.randn(count, heads, width) for _ in "qk")
    query, key = (x / x.norm(dim=-1, keepdim=True) for x in (query, key))
    query, key, value = (x.bfloat16() for x in (query, key, new.randn(count, heads, width)))
    strength = torch.tensor([1e-6, 1e-3, 0.1, 2.0])[None, :, None]
    decay = -new.rand(count, heads, width if channels else 1) * strength
    decay = decay if channels else decay.squeeze(-1)
    beta = new.rand(count, heads)
    one = torch.ones(1, dtype=torch.int32)
    bounds = one.new_tensor([0, count])
    state, exact = torch.zeros(2, heads, width, width), torch.zeros(1, heads, width, width).double()
    tokens = query, key, value, decay, beta
    out = chunked.chunk_gated_delta_rule(*tokens, state, bounds, one, one > 0, 1.0, False)
    wide = [x.double() for x in tokens]
    right = torch.cat([
        chunked.some_chunks(*(x[start : start + 512] for x in wide), exact[0], 1.0, False)
        for start in range(0, count, 512)
    ])  # fmt: skip
    for part in (slice(0, 4096), slice(count - 4096, count)):
        # The outputs are rounded to bfloat16 at the end.
        assert_close(out[part], right[part])
    torch.testing.assert_close(state[1].double(), exact[0], rtol=0, atol=2e-5)


def test_rejected_drafts_leave_no_trace() -> None:
    """Three drafts a step, of which one is accepted: the same as decoding those tokens alone."""
    new = Inputs()
    tokens = [x.float() for x in tokens_of(12, True, "usual", new)]
    start = new.randn(6, 4, 5, 6)
    index = torch.tensor([[1, 2, 3, 4]], dtype=torch.int32)
    plain, drafted = start.clone(), start.clone()
    right, got, accepted = [], [], torch.ones(1, dtype=torch.int32)
    for first in range(0, 8, 2):
        for t in (first, first + 1):
            part = [x[t : t + 1] for x in tokens]
            bounds = index.new_tensor([0, 1])
            right.append(recurrent_gated_delta_rule(*part, plain, bounds, index[:, :1], None, 0.4))
        part = [x[first : first + 4] for x in tokens]
        out = recurrent_gated_delta_rule(
            *part, drafted, index.new_tensor([0, 4]), index, accepted, 0.4
        )
        got.append(out[:2])
        accepted = torch.full((1,), 2, dtype=torch.int32)
    assert_close(torch.cat(got), torch.cat(right))
    assert torch.equal(drafted[5], start[5])


@pytest.mark.parametrize("seed", range(4))
def test_the_table_of_chunks_lists_them_in_order(seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    lengths = torch.randint(0, 200, (seed + 1,), generator=generator)
    lengths[torch.rand(len(lengths), generator=generator) < 0.3] = 0
    bounds = torch.tensor([0, *lengths.cumsum(0).tolist()], dtype=torch.int32)
    tokens = int(bounds[-1]) + 3
    wanted = [
        [start, min(CHUNK, last - start)]
        for first, last in pairwise(bounds.tolist())
        for start in range(first, last, CHUNK)
    ]
    table = chunk_table(bounds, tokens)
    assert table.shape == (tokens // CHUNK + len(lengths), 2)
    assert table[: len(wanted)].tolist() == wanted
    assert not bool(table[len(wanted) :, 1].any())
    assert chunk_table(bounds.to("meta"), tokens).shape == table.shape


@pytest.mark.parametrize(
    "run",
    [recurrent_gated_delta_rule, reference.recurrent_gated_delta_rule],
    ids=["called", "definition"],
)
def test_slots_and_tokens_that_do_not_exist_are_refused(run: Any) -> None:
    """Before anything is written."""
    arguments = list(next(case for case in RECURRENT if case.name == "drafts").arguments())
    before = arguments[5].clone()
    for place, bad in (
        (6, arguments[6] + 1),
        (6, arguments[6].flip(0).contiguous()),
        (7, arguments[7] + 5),
        (8, arguments[8] + 2),
        (8, arguments[8] * 0),
    ):
        with pytest.raises(IndexError):
            run(*arguments[:place], bad, *arguments[place + 1 :])
        assert torch.equal(arguments[5].nan_to_num(), before.nan_to_num())


@pytest.mark.parametrize(
    "run",
    [chunk_gated_delta_rule, reference.chunk_gated_delta_rule],
    ids=["called", "definition"],
)
def test_slots_and_tokens_of_chunks_that_do_not_exist_are_refused(run: Any) -> None:
    arguments = list(next(case for case in CHUNKS if case.name == "fresh").arguments())
    before = arguments[5].clone()
    for place, bad in ((6, arguments[6] + 1), (7, arguments[7] + 2)):
        with pytest.raises(IndexError):
            run(*arguments[:place], bad, *arguments[place + 1 :])
        assert torch.equal(arguments[5].nan_to_num(), before.nan_to_num())


@pytest.mark.parametrize(
    ("implementation", "changed", "reason"),
    [
        ("triton", {}, ""),
        ("triton", {"width": 136}, "keys of width 136"),
        ("triton", {"height": 264}, "values of width 264"),
        ("torch_npu", {"state": torch.bfloat16}, ""),
        ("torch_npu", {}, "states of torch.float32"),
        ("torch_npu", {"state": torch.bfloat16, "family": "A5"}, "A5"),
        ("torch_npu", {"state": torch.bfloat16, "channels": True}, "a decay for every channel"),
        ("torch_npu", {"state": torch.bfloat16, "width": 64}, "keys of width 64"),
        ("torch_npu", {"state": torch.bfloat16, "heads": 72}, "72 heads"),
        ("torch_npu", {"state": torch.bfloat16, "tokens": 0}, "no token"),
    ],
)
def test_limits(implementation: str, changed: dict[str, Any], reason: str) -> None:
    sizes = {"width": 128, "height": 128, "heads": 8, "tokens": 3, "state": torch.float32}
    sizes |= {"family": "A2", "channels": False} | changed
    tokens, heads, width, height = (sizes[x] for x in ("tokens", "heads", "width", "height"))

    def empty(*shape: int, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
        return torch.empty(shape, dtype=dtype, device="meta")

    decay = (tokens, heads, width) if sizes["channels"] else (tokens, heads)
    support = find("ascend_attention::chunk_gated_delta_rule").supports(
        implementation,
        facts_of(sizes["family"]),
        empty(tokens, heads, width),
        empty(tokens, heads, width),
        empty(tokens, heads, height),
        empty(*decay, dtype=torch.float32),
        empty(tokens, heads),
        empty(2, heads, height, width, dtype=sizes["state"]),
        empty(2, dtype=torch.int32),
        empty(1, dtype=torch.int32),
        empty(1, dtype=torch.bool),
        1.0,
        True,
        None,
    )
    assert reason in support.reason
    assert bool(support) == (not reason)


@pytest.mark.parametrize(
    ("place", "bad", "message"),
    [
        (0, torch.randn(2, 2, 7), "key of shape"),
        (1, torch.randn(2, 2, 8).half(), "key of torch.float16"),
        (2, torch.randn(2, 3, 6), "3 value heads with 2 key heads"),
        (3, torch.zeros(2, 4, 7), "decay of shape"),
        (3, torch.zeros(2, 4, dtype=torch.float64), "decay of torch.float64"),
        (4, torch.zeros(2, 2), "beta of shape"),
        (5, torch.zeros(3, 4, 8, 6), "state of shape"),
        (5, torch.zeros(3, 4, 8, 6).mT, "state with strides"),
        (6, torch.zeros(2, dtype=torch.int64), "cu_seqlens of torch.int64"),
        (6, torch.zeros(0, dtype=torch.int32), "length of cu_seqlens=0"),
        (7, torch.zeros(2, dtype=torch.int32), "state_indices of shape"),
        (8, torch.zeros(2, dtype=torch.int32), "(has_state|accepted) of"),
    ],
)
@pytest.mark.parametrize("chunks", [False, True], ids=["recurrent", "chunks"])
def test_bad_input_is_refused(place: int, bad: torch.Tensor, message: str, chunks: bool) -> None:
    one = torch.ones(1, dtype=torch.int32)
    arguments: list[Any] = [
        torch.randn(2, 2, 8),
        torch.randn(2, 2, 8),
        torch.randn(2, 4, 6),
        torch.zeros(2, 4),
        torch.zeros(2, 4),
        torch.zeros(3, 4, 6, 8),
        torch.tensor([0, 2], dtype=torch.int32),
        one if chunks else one[:, None],
        one > 0 if chunks else one,
        1.0,
    ]
    run = chunk_gated_delta_rule if chunks else recurrent_gated_delta_rule
    run(*arguments)
    arguments[place] = bad
    with pytest.raises(InvalidInputError, match=message):
        run(*arguments)


def test_a_table_of_other_chunks_is_refused() -> None:
    arguments = list(next(case for case in CHUNKS if case.name == "ragged").arguments())
    arguments[11] = torch.zeros(3, 2, dtype=torch.int32)
    with pytest.raises(InvalidInputError, match="chunks of shape"):
        chunk_gated_delta_rule(*arguments)


def test_meta_tensors_announce_the_result() -> None:
    for name in family.__all__[1:2] + family.__all__[3:]:
        operator = find(f"ascend_attention::{name}")
        for case in CASES[name]:
            arguments = case.arguments("meta")
            got = operator(*arguments)
            assert (got.shape, got.dtype) == (arguments[2].shape, arguments[2].dtype)


def test_public_names() -> None:
    assert family.__all__ == [
        "CHUNK", "chunk_gated_delta_rule", "chunk_table", "recurrent_gated_delta_rule",
    ]  # fmt: skip
