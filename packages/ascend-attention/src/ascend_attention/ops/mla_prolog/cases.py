"""Inputs of the prologue of latent attention: padding, odd widths, the sizes of DeepSeek-V3."""

from __future__ import annotations

from typing import Any

import torch
from ascend_ops_core.cases import Case, Inputs

BF16, F16, F32 = torch.bfloat16, torch.float16, torch.float32
I32, I64 = torch.int32, torch.int64


def prolog(
    new: Inputs,
    tokens: int,
    hidden: int,
    q_rank: int,
    rank: int,
    heads: int,
    nope: int,
    rotary: int,
    dtype: torch.dtype = F32,
    *,
    rows: int = 4,
    padding: int = 0,
    index: torch.dtype = I64,
) -> tuple[Any, ...]:
    """``padding`` tokens in every third place are not written."""
    blocks = tokens // rows + 2
    angle = new.rand(tokens, rotary // 2) * 6
    number = new.permutation(blocks * rows)[:tokens]
    block, offset = (number // rows).to(index), (number % rows).to(index)
    block[: 3 * padding : 3] = -1

    def weight(*shape: int) -> torch.Tensor:
        return new.randn(*shape, dtype=dtype, scale=shape[-2] ** -0.5)

    return (
        new.randn(tokens, hidden, dtype=dtype),
        weight(hidden, q_rank),
        weight(q_rank, heads * (nope + rotary)),
        weight(heads, nope, rank),
        weight(hidden, rank + rotary),
        (new.rand(q_rank) + 0.5).to(dtype),
        (new.rand(rank) + 0.5).to(dtype),
        1e-6,
        angle.cos(),
        angle.sin(),
        new.randn(blocks, rows, rank, dtype=dtype),
        new.randn(blocks, rows, rotary, dtype=dtype),
        block,
        offset,
    )


def _published(new: Inputs, tokens: int, hidden: int, heads: int, **given: Any) -> tuple[Any, ...]:
    return prolog(new, tokens, hidden, 1536, 512, heads, 128, 64, BF16, rows=128, **given)


CASES: dict[str, tuple[Case, ...]] = {
    "mla_prolog": (
        Case("no_tokens", lambda new: prolog(new, 0, 12, 6, 8, 2, 4, 4)),
        Case("one", lambda new: prolog(new, 1, 12, 6, 8, 3, 4, 2), scale=4),
        Case("padding", lambda new: prolog(new, 9, 17, 5, 9, 2, 7, 6, padding=2), scale=4),
        Case("half", lambda new: prolog(new, 5, 24, 16, 16, 2, 8, 8, F16, index=I32), scale=8),
        Case("v3_heads", lambda new: _published(new, 3, 6144, 1, padding=1), scale=8),
        Case("v3", lambda new: _published(new, 4096, 7168, 128), large=True),
        Case("v3_rank", lambda new: _published(new, 64, 7168, 8), large=True),
    ),
}
