"""Inputs of encoder attention: ragged and empty sequences, padding, parts of a fused projection."""

from __future__ import annotations

from typing import Any

import torch
from ascend_ops_core.cases import Case, Inputs

BF16, F16, F32 = torch.bfloat16, torch.float16, torch.float32
I32, I64 = torch.int32, torch.int64


def sequences(
    new: Inputs,
    lens: list[int],
    heads: int,
    key_heads: int,
    width: int,
    dtype: torch.dtype = F32,
    *,
    padding: int = 0,
    index: torch.dtype = I32,
    host: bool = False,
) -> tuple[Any, ...]:
    ends = [sum(lens[: i + 1]) for i in range(len(lens))]
    tokens = sum(lens) + padding
    key, value = (new.randn(tokens, key_heads, width, dtype=dtype) for _ in range(2))
    if padding and new.device != "meta":
        key[-padding:] = value[-padding:] = float("nan")
    return (
        new.randn(tokens, heads, width, dtype=dtype),
        key,
        value,
        new.tensor([0, *ends], index),
        width**-0.5,
        ends if host else [],
    )


def _fused(new: Inputs) -> tuple[Any, ...]:
    """Queries, keys and values as one projection gives them."""
    _, _, _, *rest = sequences(new, [7, 12], 3, 3, 20, BF16)
    return *new.randn(19, 3, 3, 20, dtype=BF16).unbind(1), *rest


CASES: dict[str, tuple[Case, ...]] = {
    "encoder_attention": (
        Case("no_tokens", lambda new: sequences(new, [], 2, 2, 16)),
        Case("nosequences", lambda new: sequences(new, [], 2, 1, 8, padding=3)),
        Case("one", lambda new: sequences(new, [1], 1, 1, 8)),
        Case("ragged", lambda new: sequences(new, [5, 0, 33, 1], 3, 3, 20, padding=2)),
        Case("grouped", lambda new: sequences(new, [9, 30], 6, 2, 33, index=I64)),
        Case("many_short", lambda new: sequences(new, [2, 0, 0, 3, 1, 1, 4, 2, 20], 2, 2, 16)),
        Case("fused", _fused),
        Case("half", lambda new: sequences(new, [18, 3], 2, 2, 72, F16)),
        Case("host", lambda new: sequences(new, [6, 6, 6, 11], 4, 4, 16, BF16, host=True)),
        Case(
            "host_padded",
            lambda new: sequences(new, [5, 0, 5], 4, 2, 32, F16, host=True, padding=2),
        ),
        Case("qwen_image", lambda new: sequences(new, [1024, 576], 16, 16, 80, BF16), large=True),
        Case(
            "qwen_image_host",
            lambda new: sequences(new, [1024, 576], 16, 16, 80, BF16, host=True),
            large=True,
        ),
        Case("windows", lambda new: sequences(new, [64] * 20, 16, 16, 80, BF16), large=True),
        Case("siglip", lambda new: sequences(new, [729] * 2, 16, 16, 72, BF16), large=True),
    ),
}
"""Heads of Qwen2-VL's (16 of 80) and SigLIP's (16 of 72) encoders among them."""
