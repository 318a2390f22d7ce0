"""Inputs of the experts."""

from __future__ import annotations

from typing import Any

import torch
from ascend_ops_core.cases import Case, Inputs

BF16, F16, F32, I32 = torch.bfloat16, torch.float16, torch.float32, torch.int32


def _given(
    new: Inputs,
    tokens: int,
    experts: int,
    top_k: int,
    hidden: int,
    inter: int,
    dtype: torch.dtype,
    limit: float | None,
    shared: int,
    oai: bool = False,
) -> tuple[Any, ...]:
    def weight(*shape: int) -> torch.Tensor:
        return new.randn(*shape, dtype=dtype, scale=shape[-1] ** -0.5)

    return (
        new.randn(tokens, hidden, dtype=dtype),
        weight(experts, 2 * inter, hidden),
        weight(experts, hidden, inter),
        new.rand(tokens, top_k),
        new.randint(0, experts, tokens, top_k),
        limit,
        weight(2 * shared, hidden) if shared else None,
        weight(hidden, shared) if shared else None,
        *((1.702, 1.0) if oai else (1.0, 0.0)),
    )


def _case(
    name: str,
    tokens: int,
    experts: int,
    top_k: int,
    hidden: int,
    inter: int,
    dtype: torch.dtype = F32,
    *,
    limit: float | None = None,
    shared: int = 0,
    oai: bool = False,
    large: bool = False,
) -> Case:
    sizes = tokens, experts, top_k, hidden, inter
    return Case(
        name, lambda new: _given(new, *sizes, dtype, limit, shared, oai), large=large, scale=4.0
    )


def _one_expert_of_many(new: Inputs) -> tuple[Any, ...]:
    """All tokens at one expert; the others, whose weights are NaN, must not be read."""
    x, w13, w2, weights, _, *others = _given(new, 9, 5, 2, 16, 8, F32, None, 0)
    if x.device.type == "cpu":
        for expert in (0, 1, 2, 4):
            w13[expert], w2[expert] = float("nan"), float("nan")
    return x, w13, w2, weights, new.full(3, 9, 2, dtype=I32), *others


CASES: dict[str, tuple[Case, ...]] = {
    "fused_experts": (
        _case("no_tokens", 0, 3, 2, 8, 4),
        _case("one_of_one", 1, 1, 1, 8, 4),
        _case("odd", 3, 5, 2, 19, 37, limit=0.7),
        _case("shared", 65, 7, 3, 40, 24, limit=1.0, shared=13),
        _case("oai", 11, 5, 2, 19, 37, limit=0.9, shared=13, oai=True),
        _case("half", 17, 5, 3, 33, 16, F16, shared=16),
        _case("bfloat16", 63, 9, 6, 64, 32, BF16, limit=10.0, shared=32),
        Case("one_expert_of_many", _one_expert_of_many, scale=4.0),
        Case(
            "strided",
            lambda new: (
                new.randn(9, 40)[:, 3:22],
                new.randn(4, 19, 12, scale=0.2).transpose(1, 2),
                new.randn(4, 19, 6, scale=0.4),
                new.rand(9, 4)[:, ::2],
                new.randint(0, 4, 2, 9).T,
                None,
                None,
                None,
                1.0,
                0.0,
            ),
            scale=4.0,
        ),
        _case("v4_flash", 1024, 256, 6, 4096, 2048, BF16, limit=10.0, shared=2048, large=True),
        _case("v4_pro", 1024, 384, 6, 7168, 3072, BF16, limit=10.0, shared=3072, large=True),
        _case("v4_flash_float", 1024, 256, 6, 4096, 2048, limit=10.0, shared=2048, large=True),
        _case("v4_pro_decode", 16, 384, 6, 7168, 3072, BF16, limit=10.0, large=True),
        _case("eight_of_256", 64, 256, 8, 7168, 2048, BF16, shared=2048, large=True),
    ),
}
