"""Inputs of latent attention from queries to values."""

from __future__ import annotations

from typing import Any

import torch
from ascend_ops_core.cases import Case, Inputs

from ascend_attention.ops.mla_attention import cases

BF16, F16, F32 = torch.bfloat16, torch.float16, torch.float32


def _step(
    new: Inputs,
    requests: list[tuple[int, int]],
    heads: int,
    nope: int,
    value: int,
    rank: int,
    rotary: int,
    dtype: torch.dtype = F32,
    **given: Any,
) -> tuple[Any, ...]:
    q_latent, q_rope, latents, ropes, *rest = cases.step(
        new, requests, heads, rank, rotary, dtype, **given
    )
    tokens = q_latent.shape[0]
    return (
        new.randn(tokens, heads, nope + rotary, dtype=dtype)[..., :nope],
        q_rope,
        latents,
        ropes,
        new.randn(heads, nope + value, rank, dtype=dtype, scale=rank**-0.5),
        *rest,
    )


def _v3(new: Inputs, requests: list[tuple[int, int]], heads: int, columns: int) -> tuple[Any, ...]:
    return _step(
        new, requests, heads, 128, 128, 512, 64, BF16,
        rows=128, index=torch.int32, slab=False, columns=columns,
    )  # fmt: skip


CASES: dict[str, tuple[Case, ...]] = {
    "mla_forward": (
        Case("no_tokens", lambda new: _step(new, [], 2, 8, 6, 16, 4)),
        Case("first_token", lambda new: _step(new, [(1, 1)], 1, 4, 3, 8, 2), scale=2),
        Case(
            "ragged",
            lambda new: _step(new, [(17, 1), (5, 5), (33, 20)], 3, 6, 7, 20, 6, padding=2),
            scale=2,
        ),
        Case("padding_alone", lambda new: _step(new, [], 2, 4, 4, 8, 4, padding=3)),
        Case("prompt", lambda new: _step(new, [(40, 40)], 5, 8, 4, 24, 8, F16), scale=4),
        Case("apart", lambda new: _step(new, [(50, 4)], 2, 8, 4, 16, 8, BF16, slab=False), scale=4),
        Case(
            "host",
            lambda new: _step(
                new,
                [(20, 2), (9, 1)],
                2,
                16,
                16,
                512,
                64,
                BF16,
                index=torch.int32,
                slab=False,
                host=True,
            ),
            scale=4,
        ),
        Case("v3_tp8", lambda new: _v3(new, [(900, 1)] * 32, 16, 32), large=True),
        Case("v3_dp", lambda new: _v3(new, [(8000, 2)] * 4, 128, 1280), large=True),
    ),
}
