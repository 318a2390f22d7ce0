"""Inputs of the gates."""

from __future__ import annotations

from typing import Any

import torch
from ascend_ops_core.cases import Case, Inputs

BF16, F16, F32 = torch.bfloat16, torch.float16, torch.float32


def _gdn(
    new: Inputs,
    tokens: int,
    heads: int,
    dtype: torch.dtype = F32,
    parameters: torch.dtype = F32,
    scale: float = 3.0,
    gap: int = 0,
    beta: torch.dtype = F32,
) -> tuple[Any, ...]:
    mixed = new.randn(2, tokens, heads + gap, dtype=dtype, scale=scale)[..., :heads]
    return (
        mixed[0],
        mixed[1],
        new.rand(heads, dtype=parameters),
        new.randn(heads, dtype=parameters),
        beta,
    )


def _kda(
    new: Inputs,
    tokens: int,
    heads: int,
    width: int,
    bound: float | None,
    dtype: torch.dtype = F32,
    scale: float = 3.0,
    gap: int = 0,
) -> tuple[Any, ...]:
    f = new.randn(tokens, heads * width + gap, dtype=dtype, scale=scale)[:, gap:]
    return (
        f.unflatten(1, (heads, width)),
        new.randn(tokens, heads, dtype=dtype, scale=scale),
        new.rand(heads),
        new.randn(heads, width),
        bound,
    )


CASES: dict[str, tuple[Case, ...]] = {
    "gdn_gates": (
        Case("no_tokens", lambda new: _gdn(new, 0, 4)),
        Case("one", lambda new: _gdn(new, 1, 1)),
        Case("odd", lambda new: _gdn(new, 67, 5), scale=10),
        Case("strided", lambda new: _gdn(new, 9, 33, BF16, BF16, gap=3, beta=BF16), scale=10),
        # Beyond 20 the softplus is the identity, and far below 0 it vanishes.
        Case("extreme", lambda new: _gdn(new, 40, 8, F16, F32, 40.0), scale=100),
        Case("qwen3_next", lambda new: _gdn(new, 4096, 32, BF16), large=True),
        Case("decode", lambda new: _gdn(new, 32, 32, BF16), large=True),
    ),
    "kda_gates": (
        Case("no_tokens", lambda new: _kda(new, 0, 4, 8, None)),
        Case("one", lambda new: _kda(new, 1, 1, 1, -5.0)),
        Case("odd", lambda new: _kda(new, 13, 3, 63, None), scale=10),
        Case("bounded", lambda new: _kda(new, 13, 3, 40, -0.5, BF16, 20.0, gap=16)),
        Case("extreme", lambda new: _kda(new, 5, 2, 128, None, F16, 40.0, gap=7), scale=100),
        Case("kimi_k3", lambda new: _kda(new, 4096, 96, 128, -5.0, BF16), large=True),
        Case("kimi_linear", lambda new: _kda(new, 4096, 32, 128, None, BF16), large=True),
        Case("decode", lambda new: _kda(new, 32, 96, 128, -5.0, BF16), large=True),
    ),
}
