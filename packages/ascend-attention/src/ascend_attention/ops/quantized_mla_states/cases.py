"""Inputs of the quantised sparse MLA with its states: those of quantised MLA, and empty queries."""

from __future__ import annotations

from typing import Any

import torch
from ascend_ops_core.cases import Case, Inputs

from ascend_attention.ops.quantized_mla import cases
from ascend_attention.ops.token_indexer.cases import Batch, owned

BF16 = torch.bfloat16


def _attended(
    new: Inputs,
    batch: Batch,
    *sizes: int,
    empty: int = 0,
    index: torch.dtype = torch.int32,
    **given: Any,
) -> tuple[Any, ...]:
    """As those of quantised MLA; every ``empty``-th query finds nothing."""
    return owned(cases.attended(new, batch, *sizes, **given), empty, index)


def _large(new: Inputs, batch: Batch, heads: int, places: int, columns: int) -> tuple[Any, ...]:
    return _attended(new, batch, heads, 512, 64, 128, places, dtype=BF16, columns=columns)


CASES: dict[str, tuple[Case, ...]] = {
    "quantized_mla_states": (
        Case("no_queries", lambda new: _attended(new, [(0, 5)], 2, 128, 8, 4, 3)),
        Case("no_requests", lambda new: _attended(new, [], 2, 128, 8, 4, 3, padding=2)),
        Case("no_places", lambda new: _attended(new, [(2, 5)], 2, 128, 8, 4, 0)),
        Case("one", lambda new: _attended(new, [(1, 1)], 2, 128, 8, 4, 3)),
        Case(
            "odd",
            lambda new: _attended(
                new, [(3, 40), (0, 4), (1, 3)], 3, 256, 6, 7, 17, empty=2, index=torch.int64
            ),
        ),
        Case("nothing_here", lambda new: _attended(new, [(3, 9)], 2, 128, 8, 4, 6, empty=1)),
        Case("padding", lambda new: _attended(new, [(2, 9)], 2, 128, 8, 4, 6, padding=2)),
        Case("many_rows", lambda new: _attended(new, [(1, 300)], 4, 128, 8, 64, 260)),
        Case(
            "bfloat16",
            lambda new: _attended(new, [(2, 65)], 17, 128, 16, 16, 40, dtype=BF16, empty=2),
        ),
        Case("v32_dcp8", lambda new: _large(new, [(1, 8192)] * 8, 128, 2048, 128), large=True),
        Case("glm5_dcp4", lambda new: _large(new, [(2, 16384)] * 8, 64, 2048, 256), large=True),
    ),
}
