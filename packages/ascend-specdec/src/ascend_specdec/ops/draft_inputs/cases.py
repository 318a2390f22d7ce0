"""Inputs of what prepares a draft's inputs."""

from __future__ import annotations

from typing import Any

import torch
from ascend_ops_core.cases import Case, Inputs

I32, I64 = torch.int32, torch.int64
RAGGED = ((2, 1), (0, 1), (5, 6), (3, 0), (0, 0), (1, 2))


def _prepare(
    name: str,
    requests: tuple[tuple[int, int], ...],
    *,
    dtype: torch.dtype = I32,
    large: bool = False,
) -> Case:
    """``requests`` are pairs of (drafts, valid tokens)."""

    def make(new: Inputs) -> tuple[Any, ...]:
        starts, ends = [0], list[int]()
        for i, (drafts, _) in enumerate(requests):
            starts.append(starts[-1] + drafts + 1 + 4 * (i % 3 == 1))
            ends.append((ends[-1] if ends else 0) + drafts)
        valid = [one for _, one in requests]
        out = new.full(-7, len(requests), dtype=dtype)
        rejected = new.full(-7, len(requests), dtype=I32)
        return (
            out,
            rejected,
            new.tensor(ends, dtype),
            new.tensor(valid, I32),
            new.tensor(starts, I32),
        )

    return Case(name, make, large=large)


def _next(
    name: str, requests: int, width: int, *, dtype: torch.dtype = I32, large: bool = False
) -> Case:
    def make(new: Inputs) -> tuple[Any, ...]:
        return (
            new.full(-7, requests, dtype=I32),
            new.full(-7, requests, dtype=I32),
            new.randint(-1, 9, requests, width, dtype=dtype),
            new.randint(0, 2, requests, dtype=torch.bool),
            new.randint(20, 30, requests, dtype=I32),
            7,
        )

    return Case(name, make, large=large)


def _step(
    name: str,
    positions: tuple[int, ...],
    block_size: int,
    limit: int,
    *,
    padding: int = 0,
    dtype: torch.dtype = I64,
    large: bool = False,
) -> Case:
    def make(new: Inputs) -> tuple[Any, ...]:
        requests, blocks = len(positions), -(-limit // block_size)
        return (
            new.full(-7, requests, dtype=I64),
            new.full(-7, requests + padding, dtype=dtype),
            new.tensor([one + 1 for one in positions], I32),
            new.tensor(positions, I64),
            new.permutation(requests * blocks + 1, I32)[1:].reshape(requests, blocks),
            block_size,
            limit,
        )

    return Case(name, make, large=large)


CASES: dict[str, tuple[Case, ...]] = {
    "prepare_inputs_padded": (
        _prepare("one", ((3, 2),)),
        _prepare("ragged", RAGGED),
        _prepare("two_programs", RAGGED * 50, dtype=I64),
        _prepare("served", ((3, 2),) * 256, large=True),
    ),
    "next_tokens_padded": (
        _next("one_column", 5, 1),
        _next("ragged", 9, 4),
        _next("int64", 6, 8, dtype=I64),
        _next("served", 256, 4, large=True),
    ),
    "next_positions": (
        _step("nothing", (), 16, 64, padding=3),
        _step("block_ends", (0, 14, 15, 16, 62, 63), 16, 64, padding=5),
        _step("odd_block", (10, 11, 12), 12, 40, dtype=I32),
        _step("served", (1000,) * 256, 128, 131072, padding=100, large=True),
    ),
}
