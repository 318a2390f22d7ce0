"""Inputs of the split."""

from __future__ import annotations

from typing import Any

import torch
from ascend_ops_core.cases import Case, Inputs

BF16, F16, F32 = torch.bfloat16, torch.float16, torch.float32


def _packed(
    new: Inputs,
    tokens: int,
    heads: tuple[int, int],
    widths: tuple[int, int],
    dtype: torch.dtype = F32,
    gap: int = 0,
) -> tuple[Any, ...]:
    key_heads, value_heads = heads
    width = 2 * key_heads * widths[0] + 2 * value_heads * widths[1]
    return (
        new.randn(tokens, width + gap, dtype=dtype)[:, gap:],
        new.randn(tokens, 2 * value_heads + gap, dtype=dtype)[:, gap:],
        *heads,
        *widths,
    )


CASES: dict[str, tuple[Case, ...]] = {
    "split_qkvz_ba": (
        Case("no_tokens", lambda new: _packed(new, 0, (2, 4), (8, 8))),
        Case("one", lambda new: _packed(new, 1, (1, 1), (1, 1))),
        Case("odd", lambda new: _packed(new, 5, (3, 9), (7, 11))),
        Case("strided", lambda new: _packed(new, 9, (2, 4), (16, 32), BF16, 5)),
        Case("many_tokens", lambda new: _packed(new, 70, (2, 2), (33, 16), F16)),
        Case("qwen3_next", lambda new: _packed(new, 4096, (16, 32), (128, 128), BF16), large=True),
        Case("decode", lambda new: _packed(new, 32, (16, 32), (128, 128), BF16), large=True),
    )
}
