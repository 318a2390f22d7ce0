"""Inputs of the penalties."""

from __future__ import annotations

from typing import Any

import torch

from ascend_ops_core.cases import Case, Inputs

BF16, F16, F32 = torch.bfloat16, torch.float16, torch.float32


def _inputs(new: Inputs, rows: int, vocabulary: int, dtype: torch.dtype = F32) -> tuple[Any, ...]:
    mask = new.randint(0, 2, rows, vocabulary, dtype=torch.bool)
    # Half of the tokens were not sampled yet.
    sampled = new.randint(0, 2, rows, vocabulary, dtype=torch.int32)
    return (
        new.randn(rows, vocabulary, dtype=dtype, scale=4.0),
        mask,
        sampled * new.randint(1, 4, rows, vocabulary, dtype=torch.int32),
        new.rand(rows) + 0.5,
        new.randn(rows),
        new.randn(rows),
    )


def _strided(new: Inputs) -> tuple[Any, ...]:
    logits, mask, counts, *penalties = _inputs(new, 3, 130)
    return logits[:, 5:70], mask[:, ::2], counts[:, 65:], *penalties


def _neutral(new: Inputs) -> tuple[Any, ...]:
    logits, mask, counts, *_ = _inputs(new, 2, 63)
    return logits, mask, counts, new.full(1.0, 2), new.full(0.0, 2), new.full(0.0, 2)


CASES: dict[str, tuple[Case, ...]] = {
    "apply_penalties": (
        Case("no_rows", lambda new: _inputs(new, 0, 63)),
        Case("one", lambda new: _inputs(new, 1, 1)),
        Case("odd", lambda new: _inputs(new, 3, 63, F16), scale=4.0),
        Case("ragged", lambda new: _inputs(new, 5, 1000, BF16), scale=4.0),
        Case("strided", _strided, scale=4.0),
        Case("neutral", _neutral),
        Case("many_blocks", lambda new: _inputs(new, 2, 5001), scale=4.0),
        Case("v4", lambda new: _inputs(new, 64, 129280), large=True),
        Case("qwen_bf16", lambda new: _inputs(new, 384, 151936, BF16), large=True),
    )
}
