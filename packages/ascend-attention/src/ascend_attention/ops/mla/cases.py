"""Inputs of the prologue and the epilogue."""

from __future__ import annotations

from typing import Any

import torch
from ascend_ops_core.cases import Case, Inputs

BF16, F16, F32 = torch.bfloat16, torch.float16, torch.float32


def _rotation(new: Inputs, tokens: int, pairs: int) -> tuple[torch.Tensor, torch.Tensor]:
    angle = new.rand(tokens, pairs) * 6
    return angle.cos(), angle.sin()


def _prologue(
    new: Inputs,
    tokens: int,
    hidden: int,
    rank: int,
    heads: int,
    width: int,
    pairs: int,
    dtype: torch.dtype = F32,
) -> tuple[Any, ...]:
    return (
        new.randn(tokens, hidden, dtype=dtype),
        new.randn(rank + width, hidden, dtype=dtype, scale=hidden**-0.5),
        new.randn(heads * width, rank, dtype=dtype, scale=rank**-0.5),
        new.rand(rank),
        new.rand(width),
        1e-6,
        *_rotation(new, tokens, pairs),
    )


def _epilogue(
    new: Inputs,
    tokens: int,
    heads: int,
    width: int,
    groups: int,
    rank: int,
    hidden: int,
    pairs: int,
    dtype: torch.dtype = F32,
) -> tuple[Any, ...]:
    inner = heads // groups * width
    return (
        new.randn(tokens, heads, width, dtype=dtype),
        new.randn(groups, rank, inner, dtype=dtype, scale=inner**-0.5),
        new.randn(hidden, groups * rank, dtype=dtype, scale=(groups * rank) ** -0.5),
        *_rotation(new, tokens, pairs),
    )


def _views(new: Inputs) -> tuple[Any, ...]:
    _hidden, *rest = _prologue(new, 3, 20, 33, 2, 18, 4)
    return new.randn(3, 50)[:, 5:25], *rest


CASES: dict[str, tuple[Case, ...]] = {
    "mla_prologue": (
        Case("no_tokens", lambda new: _prologue(new, 0, 8, 5, 3, 4, 1)),
        Case("one", lambda new: _prologue(new, 1, 8, 5, 3, 4, 2), scale=4),
        Case("odd", lambda new: _prologue(new, 17, 19, 21, 3, 12, 3), scale=4),
        Case("ragged", lambda new: _prologue(new, 3, 65, 63, 5, 34, 17, BF16), scale=4),
        Case("half", lambda new: _prologue(new, 5, 33, 16, 2, 20, 4, F16), scale=4),
        Case("views", _views, scale=4),
        Case("v4_flash", lambda new: _prologue(new, 64, 4096, 1024, 64, 512, 32, BF16), large=True),
        Case("v4_pro", lambda new: _prologue(new, 64, 7168, 1536, 128, 512, 32, BF16), large=True),
    ),
    "mla_epilogue": (
        Case("no_tokens", lambda new: _epilogue(new, 0, 4, 6, 2, 3, 8, 2)),
        Case("one", lambda new: _epilogue(new, 1, 4, 6, 2, 3, 8, 2)),
        Case("odd", lambda new: _epilogue(new, 17, 6, 10, 3, 5, 23, 4), scale=2),
        Case("one_group", lambda new: _epilogue(new, 3, 4, 34, 1, 33, 65, 17, BF16), scale=2),
        Case("half", lambda new: _epilogue(new, 5, 2, 20, 2, 16, 40, 4, F16), scale=2),
        Case(
            "v4_flash",
            lambda new: _epilogue(new, 64, 64, 512, 8, 1024, 4096, 32, BF16),
            large=True,
        ),
        Case(
            "v4_pro",
            lambda new: _epilogue(new, 64, 128, 512, 16, 1024, 7168, 32, BF16),
            large=True,
        ),
    ),
}
