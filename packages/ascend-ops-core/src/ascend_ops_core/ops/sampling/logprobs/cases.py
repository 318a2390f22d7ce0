"""Inputs of the ids whose log-probabilities are wanted."""

from __future__ import annotations

from typing import Any

import torch

from ascend_ops_core.cases import Case, Inputs

I32, I64 = torch.int32, torch.int64


def _inputs(
    new: Inputs, rows: int, top: int | None, columns: int, custom: int = 8, dtype: torch.dtype = I32
) -> tuple[Any, ...]:
    requests = 5
    counts = [0, min(1, custom), custom, 0, min(3, custom)]
    return (
        new.randint(0, 1000, rows),
        None if top is None else new.randint(0, 1000, rows, top, dtype=dtype),
        new.randint(0, requests, rows, dtype=I32),
        new.tensor(counts, I32),
        new.randint(0, 1000, requests, custom, dtype=I32),
        columns,
    )


def _strided(new: Inputs) -> tuple[Any, ...]:
    sampled, top, requests, _, custom, columns = _inputs(new, 8, 12, 8, 16, I64)
    counts = new.tensor([0, 1, 8, 0, 3], I32)
    return sampled[::2], top[::2, ::2], requests[::2], counts, custom[:, ::2], columns


CASES: dict[str, tuple[Case, ...]] = {
    "logprob_token_ids": (
        Case("no_rows", lambda new: _inputs(new, 0, 5, 8)),
        Case("no_columns", lambda new: _inputs(new, 3, None, 0, 0)),
        Case("one", lambda new: _inputs(new, 1, 1, 1, 1)),
        Case("custom_only", lambda new: _inputs(new, 7, None, 8)),
        Case("more_top", lambda new: _inputs(new, 9, 20, 20, 3, I64)),
        Case("more_custom", lambda new: _inputs(new, 9, 3, 65, 65)),
        Case("strided", _strided),
        Case("largest", lambda new: _inputs(new, 256, 20, 128, 128), large=True),
        Case("whole_vocabulary", lambda new: _inputs(new, 4, 129280, 129280, 128), large=True),
    )
}
