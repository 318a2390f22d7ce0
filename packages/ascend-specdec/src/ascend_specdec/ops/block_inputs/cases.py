"""Inputs of block drafting."""

from __future__ import annotations

from typing import Any

import torch
from ascend_ops_core.cases import Case, Inputs

I32, I64 = torch.int32, torch.int64
# Tokens of this step, tokens in all, rejected ones.
RAGGED = ((3, 3, 0), (1, 40, 0), (8, 47, 7), (0, 9, 0), (4, 17, 4), (16, 31, 2))
FULL = ((4, 30, 1), (1, 31, 0), (3, 32, 2), (2, 32, 0))
SERVED = ((8, 4000, 3),) * 64
PREFILL = ((4096, 6000, 0), (8, 800, 7))


def _blocks(
    name: str,
    requests: tuple[tuple[int, int, int], ...],
    queries: int,
    *,
    block_size: int = 16,
    limit: int = 64,
    padding: int = 0,
    rejecting: bool = True,
    dtype: torch.dtype = I64,
    large: bool = False,
) -> Case:
    def make(new: Inputs) -> tuple[Any, ...]:
        starts = [0]
        for brought, _, _ in requests:
            starts.append(starts[-1] + brought)
        rows = len(requests) * queries
        entries = -(-limit // block_size)
        table = new.permutation(len(requests) * entries, dtype=I32).view(-1, entries)
        return (
            new.full(-7, rows, dtype=I32),
            new.full(-7, rows, dtype=dtype),
            new.full(-7, rows, dtype=dtype),
            new.full(-7, starts[-1] + padding, dtype=dtype),
            new.randint(0, 99, len(requests), dtype=I32),
            new.tensor(starts, I32),
            new.tensor([one[1] for one in requests], I32),
            new.tensor([one[2] for one in requests], I32) if rejecting else None,
            table,
            101,
            block_size,
            limit,
        )

    return Case(name, make, large=large)


CASES: dict[str, tuple[Case, ...]] = {
    "expand_blocks": (
        _blocks("one", ((1, 1, 0),), 1),
        _blocks("ragged", RAGGED, 8),
        _blocks("padded", RAGGED, 5, padding=9, dtype=I32),
        _blocks("accepted", RAGGED, 3, rejecting=False),
        _blocks("filling_up", FULL, 6, limit=32),
        _blocks("odd_blocks", RAGGED, 7, block_size=5, limit=50),
        _blocks("served", SERVED, 8, block_size=128, limit=32768, large=True),
        _blocks("served_prefill", PREFILL, 8, block_size=128, limit=32768, large=True),
    ),
}
