"""Inputs of the causal convolution."""

from __future__ import annotations

import itertools
from typing import Any

import torch
from ascend_ops_core.cases import Case, Inputs

BF16, F16, F32 = torch.bfloat16, torch.float16, torch.float32
I32, I64 = torch.int32, torch.int64
NAN = float("nan")


def _conv(
    new: Inputs,
    counts: list[int],
    channels: int,
    width: int,
    *,
    dtype: torch.dtype = F32,
    weight_dtype: torch.dtype = F32,
    biased: bool = False,
    slots: list[int] | None = None,
    has_state: list[bool] | None = None,
    accepted: list[int] | None = None,
    rows: int | None = None,
    state_dtype: torch.dtype | None = None,
    padding: int = 0,
    gap: int = 0,
    most: int | None = None,
    silu: bool = True,
    index: torch.dtype = I32,
) -> tuple[Any, ...]:
    """Tokens of every request, NaN in rows and slots that nobody may read.

    Args:
        new: makes the tensors.
        counts: tokens of every request.
        channels: ``C``.
        width: ``W``.
        dtype: of tokens.
        weight_dtype: of weight and bias.
        biased: whether there is a bias.
        slots: of every request; none without states.
        has_state: whether a request has a history.
        accepted: tokens of the step before.
        rows: of a slot, if more than the history.
        state_dtype: of the states, if another one.
        padding: tokens behind the last request.
        gap: values between the rows of tokens and of states that belong to others.
        most: bound of a request's tokens.
        silu: whether it is applied.
        index: dtype of starts, slots and counts.
    """
    tokens = sum(counts) + padding
    x = new.randn(tokens, channels + gap, dtype=dtype)[:, gap:]
    start = [0, *itertools.accumulate(counts)]
    states = None
    if slots is not None:
        total = max(slots, default=0) + 3
        states = new.full(NAN, total, rows or width - 1, channels + gap, dtype=state_dtype or dtype)
        states = states[:, :, gap:]
        if new.device != "meta":
            for r, slot in enumerate(slots):
                if slot > 0 and (has_state is None or has_state[r]):
                    first = accepted[r] - 1 if accepted else 0
                    history = new.randn(width - 1, channels, dtype=states.dtype)
                    states[slot, first : first + width - 1] = history
    return (
        x,
        new.randn(width, channels, dtype=weight_dtype),
        new.tensor(start, index),
        new.randn(channels, dtype=weight_dtype) if biased else None,
        states,
        None if slots is None else new.tensor(slots, index),
        None if has_state is None else new.tensor(has_state, torch.bool),
        None if accepted is None else new.tensor(accepted, index),
        max([*counts, 0]) if most is None else most,
        silu,
    )


def _decode(new: Inputs, requests: int, channels: int, *, drafts: int = 0) -> tuple[Any, ...]:
    return _conv(
        new,
        [1 + drafts] * requests,
        channels,
        4,
        dtype=BF16,
        slots=list(range(1, requests + 1)),
        accepted=[1] * requests if drafts else None,
        rows=3 + drafts,
    )


CASES: dict[str, tuple[Case, ...]] = {
    "causal_conv1d": (
        Case("no_tokens", lambda new: _conv(new, [], 8, 4)),
        Case("empty_requests", lambda new: _conv(new, [0, 0], 8, 4, slots=[1, 2])),
        Case("one", lambda new: _conv(new, [1], 1, 2, slots=[1])),
        Case("no_states", lambda new: _conv(new, [5, 1, 70], 24, 4, padding=2)),
        Case(
            "ragged",
            lambda new: _conv(
                new,
                [3, 0, 1, 2, 67, 0, 33],
                40,
                4,
                biased=True,
                slots=[4, 0, 1, 2, 6, 3, 5],
                has_state=[True, True, False, True, True, True, False],
                gap=5,
                padding=3,
            ),
            scale=4,
        ),
        Case(
            "padded_requests",
            lambda new: _conv(
                new, [1, 2, 1, 40], 16, 3, slots=[2, 0, -1, 0], silu=False, index=I64
            ),
        ),
        Case(
            "drafts",
            lambda new: _conv(
                new,
                [3, 2, 0, 1, 3, 3],
                48,
                4,
                slots=[3, 1, 2, 5, 0, 4],
                accepted=[1, 3, 1, 2, 7, 3],
                rows=5,
                padding=1,
                gap=3,
            ),
            scale=4,
        ),
        Case(
            "drafts_of_new_requests",
            lambda new: _conv(
                new,
                [2, 3],
                16,
                2,
                slots=[1, 2],
                accepted=[1, 1],
                rows=3,
                has_state=[False, True],
                index=I64,
            ),
        ),
        Case(
            "wide_taps",
            lambda new: _conv(new, [9, 2], 33, 7, slots=[2, 1], biased=True, dtype=BF16),
            scale=8,
        ),
        Case(
            "mixed_dtypes",
            lambda new: _conv(
                new, [4, 66], 72, 4, dtype=F16, weight_dtype=BF16, state_dtype=F32, slots=[1, 3]
            ),
            scale=4,
        ),
        Case(
            "decode",
            lambda new: _conv(new, [1] * 5, 300, 4, dtype=BF16, slots=[5, 1, 4, 0, 2]),
            scale=4,
        ),
        Case(
            "qwen3_next_prefill",
            lambda new: _conv(new, [2048, 2048], 8192, 4, dtype=BF16, slots=[1, 2]),
            large=True,
        ),
        Case("qwen3_next_decode", lambda new: _decode(new, 64, 8192), large=True),
        Case("kimi_k3_decode", lambda new: _decode(new, 32, 12288), large=True),
        Case("kimi_k3_drafts", lambda new: _decode(new, 16, 12288, drafts=7), large=True),
    )
}
