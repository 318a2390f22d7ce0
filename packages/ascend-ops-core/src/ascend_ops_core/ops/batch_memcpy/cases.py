"""Inputs of the copies."""

from __future__ import annotations

from typing import Any

import torch

from ascend_ops_core.cases import Case, Inputs

_RANGES = [(0, 30, 3), (10, 0, 20), (70, 60, 0), (100, 200, 65), (40, 130, 1)]
"""(to, from, bytes), none of which overlap."""


def _inputs(new: Inputs, ranges: list[tuple[int, int, int]], room: int = 1000) -> tuple[Any, ...]:
    columns = list(zip(*ranges, strict=True)) or [(), (), ()]
    return (
        new.randint(0, 256, room, dtype=torch.uint8),
        new.randint(0, 256, room, dtype=torch.uint8),
        *(new.tensor(column, torch.int64) for column in columns),
    )


def _strided(new: Inputs) -> tuple[Any, ...]:
    to, source, *_ = _inputs(new, [])
    table = new.tensor(_RANGES, torch.int64)
    return to, source, table[:, 0], table[:, 1], table[:, 2]


CASES: dict[str, tuple[Case, ...]] = {
    "batch_memcpy": (
        Case("no_ranges", lambda new: _inputs(new, [])),
        Case("one_byte", lambda new: _inputs(new, [(999, 0, 1)])),
        Case("small", lambda new: _inputs(new, _RANGES)),
        Case("strided_table", _strided),
        Case("large_range", lambda new: _inputs(new, [(3, 5, 20001), (30000, 0, 8192)], 40000)),
        Case(
            "mamba_states",
            lambda new: (
                new.randint(0, 256, 1 << 20, dtype=torch.uint8),
                new.randint(0, 256, 1 << 20, dtype=torch.uint8),
                *(new.randint(0, 1000, 64) for _ in range(3)),
            ),
            large=True,
        ),
    )
}
