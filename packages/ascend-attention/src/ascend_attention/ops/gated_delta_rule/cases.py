"""Inputs of the gated delta rule: ragged requests, padding, empty slots, both kinds of decay."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import Any

import torch
from ascend_ops_core.cases import Case, Inputs

BF16, F16, F32 = torch.bfloat16, torch.float16, torch.float32
I32 = torch.int32


def _tokens(
    new: Inputs,
    lengths: Sequence[int],
    heads: tuple[int, int],
    widths: tuple[int, int],
    *,
    channels: bool = False,
    dtype: torch.dtype = F32,
    padding: int = 0,
    steep: bool = False,
    beta: torch.dtype = F32,
) -> tuple[torch.Tensor, ...]:
    """Queries, keys, values, decays and betas.

    Args:
        lengths: tokens of every request.
        heads: key heads, and value heads.
        widths: of keys, and of values.
        channels: a decay for every key channel.
        dtype: of queries, keys and values.
        padding: tokens behind the last request.
        steep: decays from 0 to -50 rather than to -1.
        beta: dtype of the betas.
    """
    tokens = sum(lengths) + padding
    shape = (tokens, heads[1], widths[0]) if channels else (tokens, heads[1])
    decay = new.rand(*shape)
    decay = -50.0 * decay * decay * decay if steep else -1.0 * decay
    # As long as queries and keys that are normalised, so that states stay near one.
    query, key = (
        new.randn(tokens, heads[0], widths[0], dtype=dtype, scale=widths[0] ** -0.5) for _ in "qk"
    )
    value = new.randn(tokens, heads[1], widths[1], dtype=dtype)
    return query, key, value, decay, new.rand(tokens, heads[1], dtype=beta)


def _state(
    new: Inputs,
    slots: int,
    heads: int,
    widths: tuple[int, int],
    dtype: torch.dtype = F32,
    gap: int = 0,
) -> torch.Tensor:
    """Slots of states; slot 0 is NaN, since it is no slot, and so is what lies between slots."""
    size = heads * widths[0] * widths[1]
    made = new.full(float("nan"), slots, size + gap, dtype=dtype)
    if new.device != "meta":
        made[1:, :size] = new.randn(slots - 1, size, dtype=dtype)
    return made[:, :size].view(slots, heads, widths[1], widths[0])


def _bounds(new: Inputs, lengths: Sequence[int]) -> torch.Tensor:
    return new.tensor(list(accumulate(lengths, initial=0)), I32)


def _recurrent(
    new: Inputs,
    lengths: Sequence[int],
    heads: tuple[int, int],
    widths: tuple[int, int],
    slots: Sequence[Sequence[int]],
    *,
    accepted: Sequence[int] | None = None,
    state: torch.dtype = F32,
    gap: int = 0,
    normalize: bool = False,
    **kind: Any,
) -> tuple[Any, ...]:
    """Args as those of :func:`_tokens`, and

    slots: of every request.
    accepted: tokens of the step before, by request.
    state: dtype of the states.
    gap: values between two slots.
    normalize: passed on.
    """
    most = max((slot for row in slots for slot in row), default=0)
    return (
        *_tokens(new, lengths, heads, widths, **kind),
        _state(new, most + 2, heads[1], widths, state, gap),
        _bounds(new, lengths),
        new.tensor([list(row) for row in slots], I32).view(len(slots), -1 if slots else 1),
        None if accepted is None else new.tensor(list(accepted), I32),
        widths[0] ** -0.5,
        normalize,
    )


def _chunk(
    new: Inputs,
    lengths: Sequence[int],
    heads: tuple[int, int],
    widths: tuple[int, int],
    slots: Sequence[int] | None = None,
    *,
    fresh: Sequence[int] = (),
    state: torch.dtype = F32,
    gap: int = 0,
    normalize: bool = False,
    **kind: Any,
) -> tuple[Any, ...]:
    """Args as those of :func:`_recurrent`, and

    slots: of every request; None counts from 1.
    fresh: requests that begin with zeros.
    """
    slots = list(range(1, len(lengths) + 1)) if slots is None else list(slots)
    return (
        *_tokens(new, lengths, heads, widths, **kind),
        _state(new, max(slots, default=0) + 2, heads[1], widths, state, gap),
        _bounds(new, lengths),
        new.tensor(slots, I32),
        new.tensor([r not in fresh for r in range(len(lengths))], torch.bool),
        widths[0] ** -0.5,
        normalize,
        None,
    )


def _fresh_nan(new: Inputs) -> tuple[Any, ...]:
    """What a slot without a state holds is not looked at."""
    arguments = _chunk(new, [5, 3], (1, 2), _V, fresh=[1])
    if new.device != "meta":
        arguments[5][2] = float("nan")
    return arguments


_V = (16, 32)
_QWEN, _KIMI = (128, 128), (128, 128)

CASES: dict[str, tuple[Case, ...]] = {
    "recurrent_gated_delta_rule": (
        Case("no_tokens", lambda new: _recurrent(new, [0], (1, 2), _V, [[1]])),
        Case("no_requests", lambda new: _recurrent(new, [], (1, 2), _V, [], padding=2)),
        Case("decode", lambda new: _recurrent(new, [1, 1, 1], (1, 2), _V, [[2], [1], [3]])),
        Case(
            "channels",
            lambda new: _recurrent(
                new, [1, 1], (1, 2), _V, [[2], [1]], channels=True, steep=True, normalize=True
            ),
        ),
        Case(
            "ragged",
            lambda new: _recurrent(
                new, [2, 0, 1], (2, 4), (24, 20), [[1], [2], [3]], padding=2, gap=7, steep=True
            ),
        ),
        Case("no_slot", lambda new: _recurrent(new, [1, 1, 1], (1, 2), _V, [[0], [2], [-1]])),
        Case(
            "drafts",
            lambda new: _recurrent(
                new,
                [3, 1, 2],
                (1, 2),
                _V,
                [[1, 2, 3], [4, 0, 0], [7, 0, 6]],
                accepted=[2, 1, 3],
            ),
        ),
        Case(
            "more_tokens_than_slots",
            lambda new: _recurrent(new, [4], (1, 2), _V, [[2, 3]], channels=True, normalize=True),
        ),
        Case(
            "bfloat16",
            lambda new: _recurrent(
                new, [2, 1], (1, 2), _V, [[2], [1]], dtype=BF16, state=BF16, beta=BF16,
                normalize=True,
            ),
        ),
        Case("half", lambda new: _recurrent(new, [1], (1, 2), _V, [[1]], dtype=F16, beta=F16)),
        Case(
            "qwen3_next",
            lambda new: _recurrent(
                new, [1] * 64, (16, 32), _QWEN, [[1]] * 64, dtype=BF16, beta=BF16, normalize=True
            ),
            large=True,
        ),
        Case(
            "kimi_drafts",
            lambda new: _recurrent(
                new, [4] * 16, (32, 32), _KIMI, [[1, 2, 3, 4]] * 16, accepted=[1] * 16,
                channels=True, dtype=BF16, normalize=True,
            ),
            large=True,
        ),
        Case(
            "kimi_k3_rank",
            lambda new: _recurrent(
                new, [1] * 32, (12, 12), _KIMI, [[1]] * 32, channels=True, dtype=BF16,
                normalize=True,
            ),
            large=True,
        ),
    ),
    "chunk_gated_delta_rule": (
        Case("no_tokens", lambda new: _chunk(new, [0, 0], (1, 2), _V)),
        Case("no_requests", lambda new: _chunk(new, [], (1, 2), _V, padding=2)),
        Case("one", lambda new: _chunk(new, [1], (1, 2), _V)),
        Case(
            "ragged",
            lambda new: _chunk(new, [17, 0, 64, 65], (2, 4), (24, 20), padding=2, steep=True),
        ),
        Case(
            "channels",
            lambda new: _chunk(
                new, [16, 0, 70], (1, 2), _V, channels=True, steep=True, fresh=[2], gap=5
            ),
        ),
        Case("whole_chunks", lambda new: _chunk(new, [256, 5], (1, 1), (16, 16))),
        Case("no_slot", lambda new: _chunk(new, [3, 2, 4], (1, 2), _V, [0, 2, -1])),
        Case("fresh", _fresh_nan),
        Case(
            "normalized",
            lambda new: _chunk(new, [40], (2, 2), (24, 20), channels=True, normalize=True),
        ),
        Case(
            "bfloat16",
            lambda new: _chunk(
                new, [33], (1, 2), _V, dtype=BF16, state=BF16, beta=BF16, normalize=True
            ),
        ),
        Case(
            "states_of_bfloat16",
            lambda new: _chunk(
                new, [2, 0, 3, 1], (1, 1), (128, 128), [2, 1, 0, 3], dtype=BF16, state=BF16,
                beta=BF16, fresh=[3], padding=1, normalize=True,
            ),
        ),
        Case(
            "half",
            lambda new: _chunk(
                new, [20, 1, 0, 66, 3, 1, 2, 5], (2, 4), (16, 72), dtype=F16, beta=F16
            ),
            operands=F16,
        ),
        Case(
            "qwen3_next",
            lambda new: _chunk(
                new, [4096, 3000], (16, 32), _QWEN, dtype=BF16, beta=BF16, normalize=True
            ),
            large=True,
        ),
        Case(
            "kimi_linear",
            lambda new: _chunk(
                new, [4096, 3000], (32, 32), _KIMI, channels=True, dtype=BF16, normalize=True
            ),
            large=True,
        ),
        Case(
            "kimi_k3_rank",
            lambda new: _chunk(
                new, [8192], (12, 12), _KIMI, channels=True, dtype=BF16, normalize=True
            ),
            large=True,
        ),
    ),
}  # fmt: skip
