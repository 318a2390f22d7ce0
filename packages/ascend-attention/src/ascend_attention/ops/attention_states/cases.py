"""Inputs of the merge: parts without a token, which hold NaN, and tokens without any part."""

from __future__ import annotations

from typing import Any

import torch
from ascend_ops_core.cases import Case, Inputs

BF16, F16, F32 = torch.bfloat16, torch.float16, torch.float32


def _parts(
    new: Inputs,
    parts: int,
    tokens: int,
    heads: int,
    width: int,
    dtype: torch.dtype = F32,
    empty: float = 0.0,
) -> tuple[Any, ...]:
    outs = new.randn(parts, tokens, heads, width, dtype=dtype)
    lses = new.randn(parts, tokens, heads, scale=3)
    absent = new.rand(parts, tokens, heads) < empty
    return (
        outs.masked_fill(absent.unsqueeze(-1), float("nan")),
        lses.masked_fill(absent, float("-inf")),
    )


def _all_empty(new: Inputs) -> tuple[Any, ...]:
    outs, lses = _parts(new, 3, 4, 2, 10)
    outs[:, 1] = float("nan")
    lses[:, 1] = float("-inf")
    return outs, lses


def _far_apart(new: Inputs) -> tuple[Any, ...]:
    outs, lses = _parts(new, 2, 3, 3, 8)
    return outs, lses * new.tensor([[[60.0]], [[-60.0]]], F32)


CASES: dict[str, tuple[Case, ...]] = {
    "merge_attention_states": (
        Case("no_tokens", lambda new: _parts(new, 2, 0, 4, 8)),
        Case("one_part", lambda new: _parts(new, 1, 1, 1, 1)),
        Case("odd", lambda new: _parts(new, 3, 17, 5, 33, empty=0.4)),
        Case("all_empty", _all_empty),
        Case("far_apart", _far_apart),
        Case("half", lambda new: _parts(new, 2, 5, 3, 65, F16, empty=0.3)),
        Case("ragged", lambda new: _parts(new, 7, 3, 7, 130, BF16, empty=0.5)),
        Case("v3_dcp", lambda new: _parts(new, 8, 64, 128, 512, BF16), large=True),
        Case("v3_chunk", lambda new: _parts(new, 2, 4096, 128, 128, BF16), large=True),
    ),
}
