"""Inputs of the rotary embedding."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from ascend_ops_core.cases import Case, Inputs

BF16, F16, F32 = torch.bfloat16, torch.float16, torch.float32

Make = Callable[[Inputs], tuple[Any, ...]]


def _tables(
    new: Inputs, tokens: int, pairs: int, dtype: torch.dtype = F32
) -> tuple[torch.Tensor, torch.Tensor]:
    """Angles of every quadrant; at ``meta`` their shapes."""
    angle = new.randn(tokens, pairs, scale=3.0)
    return angle.cos().to(dtype), angle.sin().to(dtype)


def _one(
    shape: tuple[int, int, int],
    pairs: int,
    interleaved: bool = False,
    at_end: bool = False,
    inverse: bool = False,
    dtype: torch.dtype = F32,
    table: torch.dtype = F32,
) -> Make:
    return lambda new: (
        new.randn(*shape, dtype=dtype),
        *_tables(new, shape[0], pairs, table),
        interleaved,
        at_end,
        inverse,
    )


def _two(
    tokens: int,
    heads: tuple[int, int],
    width: int,
    pairs: int,
    interleaved: bool = False,
    dtype: torch.dtype = F32,
    table: torch.dtype = F32,
) -> Make:
    return lambda new: (
        new.randn(tokens, heads[0], width, dtype=dtype),
        new.randn(tokens, heads[1], width, dtype=dtype),
        *_tables(new, tokens, pairs, table),
        interleaved,
        False,
        False,
    )


def _normed(
    shape: tuple[int, int, int],
    pairs: int,
    weighted: bool,
    dtype: torch.dtype = F32,
    table: torch.dtype = F32,
) -> Make:
    return lambda new: (
        new.randn(*shape, dtype=dtype, scale=2.0),
        new.randn(shape[2]) if weighted else None,
        1e-6,
        *_tables(new, shape[0], pairs, table),
    )


def _cut_from_qkv(new: Inputs) -> tuple[Any, ...]:
    qkv = new.randn(5, 6, 16, dtype=BF16)
    return qkv[:, :3], qkv[:, 3:5], *_tables(new, 5, 8), False, False, False


CASES: dict[str, tuple[Case, ...]] = {
    "apply_rotary": (
        Case("no_tokens", _one((0, 2, 8), 4)),
        Case("one", _one((1, 1, 2), 1)),
        Case("neox", _one((65, 3, 24), 12)),
        Case("neox_part_at_start", _one((63, 5, 37), 12, dtype=BF16)),
        Case("neox_part_at_end_inverse", _one((3, 2, 20), 4, at_end=True, inverse=True)),
        Case("interleaved", _one((65, 3, 24), 12, interleaved=True, dtype=F16)),
        Case("interleaved_part_at_start", _one((3, 7, 37), 8, interleaved=True)),
        Case(
            "interleaved_part_at_end_inverse",
            _one((130, 1, 23), 5, interleaved=True, at_end=True, inverse=True, dtype=BF16),
        ),
        Case("bf16_table", _one((65, 3, 40), 12, dtype=BF16, table=BF16)),
        Case("f16_table_of_float32", _one((3, 2, 20), 5, True, True, True, table=F16)),
        Case(
            "strided",
            lambda new: (
                new.randn(4, 9, 40)[:, 2:5, 3:19],
                *(table[:, ::2] for table in _tables(new, 4, 16)),
                True,
                False,
                False,
            ),
        ),
        Case("v4_query", _one((2048, 64, 512), 32, True, True, dtype=BF16), large=True),
        Case("v4_key", _one((2048, 1, 512), 32, True, True, dtype=BF16), large=True),
        Case("v4_output", _one((2048, 128, 512), 32, True, True, True, BF16), large=True),
        Case("mla_key", _one((4096, 1, 64), 32, True, dtype=BF16), large=True),
        Case("half_of_128", _one((2048, 32, 128), 32, dtype=BF16), large=True),
        Case(
            "llama_query_bf16_table", _one((4096, 32, 128), 64, dtype=BF16, table=BF16), large=True
        ),
        Case("llama_query_decode", _one((32, 32, 128), 64, dtype=BF16), large=True),
        Case("heads_of_256", _one((512, 24, 256), 128, dtype=F16), large=True),
        Case("float32", _one((512, 32, 128), 64), large=True),
    ),
    "apply_rotary_qk": (
        Case("no_tokens", _two(0, (4, 2), 8, 4)),
        Case("odd", _two(3, (3, 1), 24, 12)),
        Case("part", _two(65, (3, 2), 20, 4, dtype=F16)),
        Case("interleaved", _two(63, (2, 3), 16, 8, True, BF16)),
        Case("whole_heads", _two(5, (4, 2), 64, 32)),
        Case("cut_from_qkv", _cut_from_qkv),
        Case("f16_table", _two(65, (3, 2), 20, 4, dtype=F16, table=F16)),
        Case("whole_heads_bf16_table", _two(5, (4, 2), 64, 32, dtype=BF16, table=BF16)),
        Case("llama", _two(2048, (32, 8), 128, 64, dtype=BF16), large=True),
        Case("llama_bf16_table", _two(4096, (32, 8), 128, 64, dtype=BF16, table=BF16), large=True),
        Case("minimax_m3", _two(2048, (64, 4), 128, 32, dtype=BF16), large=True),
        Case("decode", _two(16, (64, 8), 128, 64, dtype=BF16), large=True),
        Case("gpt_j", _two(512, (16, 16), 256, 32, True, F16), large=True),
    ),
    "rms_norm_rotary": (
        Case("no_tokens", _normed((0, 2, 8), 2, True)),
        Case("one", _normed((1, 1, 2), 1, False)),
        Case("odd", _normed((65, 3, 23), 4, True)),
        Case("ragged", _normed((63, 5, 40), 5, False, BF16)),
        Case("whole_head", _normed((3, 2, 16), 8, True, F16)),
        Case("bf16_table", _normed((63, 5, 40), 5, True, BF16, BF16)),
        Case(
            "strided",
            lambda new: (
                new.randn(4, 9, 40)[:, 2:5, 3:19],
                new.randn(16),
                1e-6,
                *_tables(new, 4, 4),
            ),
        ),
        Case("v4_query", _normed((2048, 64, 512), 32, False, BF16), large=True),
        Case("v4_pro_query", _normed((2048, 128, 512), 32, False, BF16), large=True),
        Case("v4_key", _normed((2048, 1, 512), 32, True, BF16), large=True),
        Case("v4_query_bf16_table", _normed((2048, 64, 512), 32, False, BF16, BF16), large=True),
        Case("v4_decode", _normed((8, 64, 512), 32, False, BF16), large=True),
        Case("v4_float32", _normed((64, 64, 512), 32, True), large=True),
    ),
}
