"""Inputs of attention with a bias: hidden keys, batches with and without a bias of their own."""

from __future__ import annotations

from typing import Any

import torch
from ascend_ops_core.cases import Case, Inputs

BF16, F16, F32 = torch.bfloat16, torch.float16, torch.float32


def _biased(
    new: Inputs,
    batch: int,
    tokens: int,
    keys: int,
    heads: int,
    width: int,
    dtype: torch.dtype = F32,
    *,
    biases: int = 1,
    scale: float = 0.125,
    bias_dtype: torch.dtype | None = None,
) -> tuple[Any, ...]:
    return (
        new.randn(batch, tokens, heads, width, dtype=dtype),
        *(new.randn(batch, keys, heads, width, dtype=dtype) for _ in range(2)),
        new.randn(biases, heads, tokens, keys, dtype=bias_dtype or dtype),
        scale,
    )


def _causal(new: Inputs) -> tuple[Any, ...]:
    """Later keys are hidden, as in T5's decoder."""
    query, key, value, bias, scale = _biased(new, 1, 9, 9, 2, 16)
    hidden = new.full(1, 9, 9, dtype=torch.bool).triu(1)
    return query, key, value, bias.masked_fill(hidden, float("-inf")), scale


def _fused(new: Inputs) -> tuple[Any, ...]:
    """Queries, keys and values as one projection gives them, and a transposed bias."""
    both = new.randn(2, 7, 3, 4, 20, dtype=BF16)
    return *both.unbind(2), new.randn(2, 7, 4, 7).permute(0, 2, 3, 1), 0.3


CASES: dict[str, tuple[Case, ...]] = {
    "relative_attention": (
        Case("no_tokens", lambda new: _biased(new, 2, 0, 3, 2, 8)),
        Case("no_batch", lambda new: _biased(new, 0, 3, 3, 2, 8)),
        Case("one", lambda new: _biased(new, 1, 1, 1, 1, 8)),
        Case("odd", lambda new: _biased(new, 2, 17, 33, 3, 20, biases=2)),
        Case("shared", lambda new: _biased(new, 3, 5, 4, 2, 33)),
        Case("causal", _causal),
        Case("fused", _fused),
        Case("long", lambda new: _biased(new, 1, 20, 150, 1, 16, F16, bias_dtype=F32)),
        Case("t5", lambda new: _biased(new, 2, 20, 20, 4, 32, BF16, scale=1.0)),
        Case(
            "t5_large", lambda new: _biased(new, 4, 512, 512, 16, 64, BF16, scale=1.0), large=True
        ),
        Case(
            "sam_window",
            lambda new: _biased(new, 25, 196, 196, 12, 64, BF16, biases=25),
            large=True,
        ),
    ),
}
"""Heads of T5-large (16 of 64) and of SAM's encoder in DeepSeek-OCR (12 of 64) among them."""
