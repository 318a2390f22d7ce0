"""Inputs of clearing and copying states."""

from __future__ import annotations

from typing import Any

import torch
from ascend_ops_core.cases import Case, Inputs

BF16, F32 = torch.bfloat16, torch.float32
I32, I64 = torch.int32, torch.int64


def _copied(
    new: Inputs,
    shape: tuple[int, ...],
    pairs: list[tuple[int, int]],
    *,
    shift: list[int] | None = None,
    dtype: torch.dtype = F32,
    gap: int = 0,
    empty: int | None = None,
    index: torch.dtype = I32,
) -> tuple[Any, ...]:
    """Every request with blocks of its own, in random order.

    Args:
        new: makes the tensors.
        shape: of one state.
        pairs: columns of source and destination of every request.
        shift: rows left out at the beginning.
        dtype: of the states.
        gap: values between two states that belong to others.
        empty: a request whose blocks are all 0.
        index: dtype of columns and shifts.
    """
    columns = 5
    blocks = len(pairs) * columns
    numbers = new.permutation(blocks, I32) + 1
    table = numbers.view(len(pairs), columns)
    if empty is not None and new.device != "meta":
        table[empty] = 0
    size = 1
    for one in shape:
        size *= one
    memory = new.randn(blocks + 1, size + gap, dtype=dtype)[:, gap:]
    source, destination = zip(*pairs, strict=True) if pairs else ((), ())
    return (
        memory.unflatten(1, shape),
        table,
        new.tensor(source, index),
        new.tensor(destination, index),
        None if shift is None else new.tensor(shift, index),
    )


CASES: dict[str, tuple[Case, ...]] = {
    "clear_states": (
        Case("no_slots", lambda new: (new.randn(3, 4), new.tensor([], I32), None)),
        Case("one", lambda new: (new.randn(2, 1), new.tensor([1], I32), None)),
        Case(
            "some",
            lambda new: (
                new.full(float("nan"), 9, 3, 5, 7),
                new.tensor([4, 0, -1, 8, 1], I32),
                new.tensor([True, True, True, False, True], torch.bool),
            ),
        ),
        Case(
            "gaps",
            lambda new: (
                new.randn(6, 700, dtype=BF16)[:, 50:].unflatten(1, (10, 65)),
                new.tensor([5, 2], I64),
                None,
            ),
        ),
        Case(
            "qwen3_next",
            lambda new: (
                new.randn(257, 32, 128, 128),
                new.randint(0, 257, 64, dtype=I32),
                new.full(1, 64, dtype=torch.bool),
            ),
            large=True,
        ),
    ),
    "copy_states": (
        Case("no_requests", lambda new: _copied(new, (4,), [])),
        Case("one", lambda new: _copied(new, (1,), [(0, 1)])),
        Case(
            "some",
            lambda new: _copied(
                new, (3, 5, 7), [(0, 1), (-1, 2), (2, 2), (4, 0), (0, 3)], empty=4, gap=11
            ),
        ),
        Case(
            "shifted",
            lambda new: _copied(
                new,
                (6, 40),
                [(0, 1), (1, 2), (3, 2), (-1, 4), (2, 3)],
                shift=[0, 2, 5, 1, 3],
                dtype=BF16,
                index=I64,
            ),
        ),
        Case("wide", lambda new: _copied(new, (5, 3000), [(1, 0), (3, 4)], shift=[0, 1], gap=8)),
        Case("qwen3_next", lambda new: _copied(new, (32, 128, 128), [(0, 1)] * 32), large=True),
        Case(
            "kimi_k3_convolution",
            lambda new: _copied(new, (10, 12288), [(0, 1)] * 32, shift=[0] * 32, dtype=BF16),
            large=True,
        ),
    ),
}
