"""Inputs of the choice among candidates."""

from __future__ import annotations

from typing import Any

import torch
from ascend_ops_core.cases import Case, Inputs

F32, BF16, I32, I64 = torch.float32, torch.bfloat16, torch.int32, torch.int64


def _edges(
    name: str,
    batch: int,
    places: int,
    width: int,
    rank: int,
    vocabulary: int,
    dtype: torch.dtype,
    *,
    tokens: torch.dtype = I64,
    large: bool = False,
) -> Case:
    def make(new: Inputs) -> tuple[Any, ...]:
        return (
            new.randn(batch, places, width),
            new.randint(0, vocabulary, batch, places, width, dtype=tokens),
            new.randint(0, vocabulary, batch, dtype=I32),
            new.randn(vocabulary, rank, dtype=dtype),
            new.randn(vocabulary, rank, dtype=dtype),
            new.randn(batch, places, rank, dtype=dtype),
        )

    return Case(name, make, large=large, scale=float(rank) ** 0.5)


def _walk(
    name: str, batch: int, places: int, width: int, *, ties: bool = False, large: bool = False
) -> Case:
    def make(new: Inputs) -> tuple[Any, ...]:
        edges = new.randn(batch, places, width, width)
        if ties:
            edges = edges.round()
        return edges, new.randint(0, 1000, batch, places, width)

    return Case(name, make, large=large)


CASES: dict[str, tuple[Case, ...]] = {
    "selector_edges": (
        _edges("one", 1, 1, 1, 1, 5, F32),
        _edges("odd", 3, 2, 5, 33, 40, F32, tokens=I32),
        _edges("bfloat16", 2, 7, 4, 16, 40, BF16),
        _edges("served", 64, 7, 8, 256, 151936, BF16, large=True),
    ),
    "selector_walk": (
        _walk("one", 1, 1, 1),
        _walk("odd", 3, 7, 5),
        _walk("ties", 9, 4, 3, ties=True),
        _walk("served", 64, 7, 8, large=True),
    ),
}
