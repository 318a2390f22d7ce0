"""Inputs of the grouped convolution."""

from __future__ import annotations

from typing import Any

import torch
from ascend_ops_core.cases import Case, Inputs

F32, BF16 = torch.float32, torch.bfloat16


def _convolved(
    name: str,
    blocks: int,
    block: int,
    width: int,
    groups: int,
    taps: int,
    side: int,
    dtype: torch.dtype,
    *,
    large: bool = False,
) -> Case:
    def make(new: Inputs) -> tuple[Any, ...]:
        rows = blocks * block
        return (
            new.randn(rows, width, dtype=dtype),
            new.randn(2, taps, width, dtype=dtype),
            new.randn(rows, 2, taps, groups, dtype=dtype),
            side,
            block,
        )

    return Case(name, make, large=large, scale=float(taps))


CASES: dict[str, tuple[Case, ...]] = {
    "grouped_convolution": (
        _convolved("one", 1, 1, 8, 2, 1, 0, F32),
        _convolved("odd", 3, 5, 42, 6, 3, 1, F32),
        _convolved("several_tiles", 1, 2, 140, 70, 2, 0, F32),
        _convolved("longer_than_block", 2, 2, 16, 1, 4, 0, BF16),
        _convolved("finish", 3, 8, 64, 4, 4, 1, BF16),
        _convolved("served", 64, 8, 4096, 32, 4, 0, BF16, large=True),
        _convolved("served_finish", 1, 16, 2560, 20, 4, 1, BF16, large=True),
    ),
}
