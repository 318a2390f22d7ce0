"""Inputs of lightning attention."""

from __future__ import annotations

import itertools
from typing import Any

import torch
from ascend_ops_core.cases import Case, Inputs

BF16, F16, F32 = torch.bfloat16, torch.float16, torch.float32
I32, I64 = torch.int32, torch.int64
NAN = float("nan")


def _projected(
    new: Inputs, tokens: int, heads: int, widths: tuple[int, int], dtype: torch.dtype, gap: int
) -> tuple[torch.Tensor, ...]:
    """Queries, keys and values out of one projection, with ``gap`` values between tokens."""
    width, inner = widths
    packed = new.randn(tokens, heads * (2 * width + inner) + gap, dtype=dtype, scale=0.5)
    cuts = [heads * width, heads * width, heads * inner, gap]
    q, k, v, _ = packed.split(cuts, dim=1)
    return tuple(x.unflatten(1, (heads, -1)) for x in (q, k, v))


def _ragged(
    new: Inputs,
    counts: list[int],
    heads: int,
    widths: tuple[int, int],
    *,
    dtype: torch.dtype = F32,
    slots: list[int] | None = None,
    has_state: list[bool] | None = None,
    padding: int = 0,
    gap: int = 0,
    index: torch.dtype = I32,
    kept: torch.dtype = F32,
) -> tuple[Any, ...]:
    q, k, v = _projected(new, sum(counts) + padding, heads, widths, dtype, gap)
    states = None
    if slots is not None:
        states = new.full(NAN, max(slots, default=0) + 2, heads, *widths, dtype=kept)
        if new.device != "meta":
            for r, slot in enumerate(slots):
                if slot > 0 and (has_state is None or has_state[r]):
                    states[slot] = new.randn(heads, *widths)
    return (
        q,
        k,
        v,
        new.rand(heads),
        new.tensor([0, *itertools.accumulate(counts)], index),
        states,
        None if slots is None else new.tensor(slots, index),
        None if has_state is None else new.tensor(has_state, torch.bool),
    )


def _steps(
    new: Inputs,
    counts: list[int],
    heads: int,
    widths: tuple[int, int],
    slots: list[list[int]],
    *,
    accepted: list[int] | None = None,
    dtype: torch.dtype = F32,
    padding: int = 0,
    gap: int = 0,
    index: torch.dtype = I32,
    kept: torch.dtype = F32,
) -> tuple[Any, ...]:
    q, k, v = _projected(new, sum(counts) + padding, heads, widths, dtype, gap)
    most = max(itertools.chain(*slots), default=0)
    states = new.full(NAN, most + 2, heads, *widths, dtype=kept)
    if new.device != "meta":
        for r, mine in enumerate(slots):
            if mine[0] > 0:
                states[mine[accepted[r] - 1 if accepted else 0]] = new.randn(heads, *widths)
    return (
        q,
        k,
        v,
        new.rand(heads),
        new.tensor([0, *itertools.accumulate(counts)], index),
        states,
        new.tensor(slots, index) if slots else new.full(0, 0, 1, dtype=index),
        None if accepted is None else new.tensor(accepted, index),
    )


CASES: dict[str, tuple[Case, ...]] = {
    "lightning_attention": (
        Case("no_tokens", lambda new: _ragged(new, [0, 0], 2, (16, 16), slots=[1, 2])),
        Case("one", lambda new: _ragged(new, [1], 1, (1, 1), slots=[1])),
        Case("no_states", lambda new: _ragged(new, [5, 70], 2, (16, 24), padding=3), scale=8),
        Case(
            "ragged",
            lambda new: _ragged(
                new,
                [3, 0, 130, 1, 64, 2],
                2,
                (16, 16),
                slots=[4, 1, 2, 0, 3, 5],
                padding=2,
                has_state=[True, True, True, True, False, False],
                gap=5,
            ),
            scale=16,
        ),
        Case(
            "bfloat16",
            lambda new: _ragged(new, [65, 9], 3, (32, 20), dtype=BF16, slots=[2, 1], index=I64),
            scale=16,
        ),
        Case(
            "ling_prefill",
            lambda new: _ragged(new, [2048, 2048], 32, (128, 128), dtype=BF16, slots=[1, 2]),
            large=True,
        ),
    ),
    "lightning_decode": (
        Case("no_tokens", lambda new: _steps(new, [0], 2, (16, 16), [[1]])),
        Case("no_requests", lambda new: _steps(new, [], 2, (16, 16), [], padding=2)),
        Case("one", lambda new: _steps(new, [1], 1, (1, 1), [[1]])),
        Case(
            "some",
            lambda new: _steps(
                new, [1, 1, 0, 1], 3, (24, 40), [[3], [0], [2], [1]], padding=2, gap=3, dtype=F16
            ),
            scale=8,
        ),
        Case(
            "drafts",
            lambda new: _steps(
                new,
                [3, 1, 2, 0, 2],
                2,
                (16, 16),
                [[1, 2, 3], [6, 5, 4], [0, 0, 0], [7, 9, 8], [11, 10, 0]],
                accepted=[2, 3, 1, 1, 2],
                padding=1,
                index=I64,
            ),
            scale=8,
        ),
        Case(
            "bfloat16",
            lambda new: _steps(new, [2, 2], 4, (64, 64), [[1, 2], [4, 3]], dtype=BF16, kept=BF16),
            scale=16,
        ),
        Case(
            "ling_decode",
            lambda new: _steps(
                new, [1] * 32, 32, (128, 128), [[r + 1] for r in range(32)], dtype=BF16
            ),
            large=True,
        ),
        Case(
            "ling_drafts",
            lambda new: _steps(
                new,
                [4] * 16,
                32,
                (128, 128),
                [list(range(4 * r + 1, 4 * r + 5)) for r in range(16)],
                accepted=[1] * 16,
                dtype=BF16,
            ),
            large=True,
        ),
    ),
}
