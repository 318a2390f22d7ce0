"""Inputs of the Markov head's step."""

from __future__ import annotations

from typing import Any

import torch

from ascend_ops_core.cases import Case, Inputs

F32, BF16, I32, I64 = torch.float32, torch.bfloat16, torch.int32, torch.int64


def _step(
    name: str,
    rows: int,
    columns: int,
    inner: int,
    dtype: torch.dtype,
    *,
    base: torch.dtype = F32,
    tokens: torch.dtype = I32,
    scale: float = 1.0,
    large: bool = False,
) -> Case:
    def make(new: Inputs) -> tuple[Any, ...]:
        vocabulary = columns + 3
        return (
            new.randn(rows, columns, dtype=base),
            new.randint(0, vocabulary, rows, dtype=tokens),
            new.randn(vocabulary, inner, dtype=dtype),
            new.randn(columns, inner, dtype=dtype),
            scale,
        )

    return Case(name, make, large=large, scale=float(inner) ** 0.5)


CASES: dict[str, tuple[Case, ...]] = {
    "markov_logits": (
        _step("one", 1, 1, 1, F32),
        _step("odd", 3, 133, 9, F32, scale=0.5),
        _step("bfloat16", 17, 200, 150, BF16, base=BF16, tokens=I64),
        _step("served", 64, 151936, 256, BF16, base=BF16, tokens=I64, large=True),
    ),
}
