"""Inputs of the slot mapping."""

from __future__ import annotations

from typing import Any

import torch

from ascend_ops_core.cases import Case, Inputs

I32, I64 = torch.int32, torch.int64


def _inputs(
    new: Inputs,
    requests: list[tuple[int, int]],
    block_size: int,
    *,
    padding: int = 0,
    ranks: int = 1,
    rank: int = 0,
    interleave: int = 1,
    dtype: torch.dtype = I64,
) -> tuple[Any, ...]:
    """``requests`` are pairs of (first position, number of tokens)."""
    starts = [0]
    positions: list[int] = []
    for first, count in requests:
        starts.append(starts[-1] + count)
        positions += range(first, first + count)
    blocks = max((first + count for first, count in requests), default=0) // block_size + 1
    return (
        new.full(-7, len(positions) + padding, dtype=dtype),
        new.tensor(starts, I32),
        new.tensor(positions + [0] * padding, I64),
        new.permutation(len(requests) * blocks + 1, I32)[1:].reshape(len(requests), blocks),
        block_size,
        ranks,
        rank,
        interleave,
    )


def _wide_table(new: Inputs) -> tuple[Any, ...]:
    slots, starts, positions, table, *rest = _inputs(new, [(5, 70), (0, 65)], 16, dtype=I32)
    wider = torch.cat((table, table, table), dim=0)[::2]
    return slots, starts, positions.to(I32), wider, *rest


CASES: dict[str, tuple[Case, ...]] = {
    "compute_slot_mapping": (
        Case("nothing", lambda new: _inputs(new, [], 16)),
        Case("no_requests", lambda new: _inputs(new, [], 16, padding=5)),
        Case("one", lambda new: _inputs(new, [(0, 1)], 1)),
        Case("decode", lambda new: _inputs(new, [(5, 1), (16, 1), (31, 1), (63, 1)], 16)),
        Case("padded", lambda new: _inputs(new, [(3, 6)] * 5, 128, padding=66)),
        Case("request_without_tokens", lambda new: _inputs(new, [(7, 2), (3, 0), (0, 3)], 4)),
        Case("prefill", lambda new: _inputs(new, [(3, 250), (0, 65), (127, 2)], 64, padding=3)),
        Case("odd_block", lambda new: _inputs(new, [(10, 63), (2, 3)], 12, dtype=I32)),
        Case("wide_table", _wide_table),
        Case(
            "two_ranks",
            lambda new: _inputs(new, [(3, 65), (30, 1)], 16, ranks=2, rank=1, padding=2),
        ),
        Case(
            "interleaved",
            lambda new: _inputs(new, [(3, 100)], 12, ranks=3, rank=2, interleave=4),
        ),
        Case(
            "v4_prefill",
            lambda new: _inputs(new, [(0, 8192)], 128, padding=0),
            large=True,
        ),
        Case(
            "decode_int32",
            lambda new: _inputs(new, [(1000, 2)] * 256, 128, padding=100, dtype=I32),
            large=True,
        ),
        Case(
            "context_parallel",
            lambda new: _inputs(new, [(0, 1024)] * 4, 128, ranks=8, rank=3),
            large=True,
        ),
    )
}
