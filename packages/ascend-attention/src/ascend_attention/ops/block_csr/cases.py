"""Inputs of the turned selection: ragged requests, unused places, padding queries."""

from __future__ import annotations

from typing import Any

import torch
from ascend_ops_core.cases import Case, Inputs

I32 = torch.int32


def _turned(
    new: Inputs,
    batch: list[tuple[int, int]],
    heads: int,
    places: int,
    order: int,
    *,
    absolute: bool = False,
    padding: int = 0,
    more_rows: int = 0,
) -> tuple[Any, ...]:
    """Every query selects different random numbers, of which some name no block of its request.

    Args:
        batch: queries and blocks of every request.
        heads: that select apart.
        places: of a selection.
        order: of the rows.
        absolute: number queries in the step.
        padding: queries behind the step's.
        more_rows: than there are blocks.
    """
    tokens = sum(count for count, _ in batch) + padding
    most = max([places, *(blocks + 2 for _, blocks in batch)])
    selected = new.full(-1, tokens, heads, places, dtype=I32)
    if new.device != "meta":
        for t in range(tokens):
            for h in range(heads):
                # -1 and numbers behind the last block are among them, in any place.
                selected[t, h] = new.permutation(most + 1, I32)[:places] - 1
    queries, blocks = [0], [0]
    for count, held in batch:
        queries.append(queries[-1] + count)
        blocks.append(blocks[-1] + held)
    return (
        selected,
        new.tensor(queries, I32),
        new.tensor(blocks, I32),
        order,
        blocks[-1] + more_rows,
        absolute,
    )


CASES: dict[str, tuple[Case, ...]] = {
    "k2q_csr": (
        Case("no_queries", lambda new: _turned(new, [(0, 3)], 2, 4, 0)),
        Case("no_requests", lambda new: _turned(new, [], 2, 4, 1, padding=2)),
        Case("no_places", lambda new: _turned(new, [(2, 3)], 2, 0, 0)),
        Case("no_heads", lambda new: _turned(new, [(2, 3)], 0, 2, 0)),
        Case("one", lambda new: _turned(new, [(1, 1)], 1, 1, 0)),
        Case("by_request", lambda new: _turned(new, [(5, 3), (0, 2), (4, 6)], 3, 4, 0)),
        Case("by_level", lambda new: _turned(new, [(5, 3), (2, 0), (4, 6), (1, 2)], 2, 4, 1)),
        Case("absolute", lambda new: _turned(new, [(3, 2), (4, 5)], 2, 3, 1, absolute=True)),
        Case("padding", lambda new: _turned(new, [(3, 2), (4, 5)], 2, 3, 0, padding=3)),
        Case("more_rows", lambda new: _turned(new, [(3, 2), (4, 5)], 2, 3, 1, more_rows=4)),
        Case("m3_prefill", lambda new: _turned(new, [(4096, 256)] * 2, 4, 16, 1), large=True),
        Case("m3_tp4", lambda new: _turned(new, [(4096, 256)], 1, 16, 0), large=True),
    ),
}
