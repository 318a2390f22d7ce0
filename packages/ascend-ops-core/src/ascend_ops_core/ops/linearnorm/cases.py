"""Inputs of split, norm and rotation of a fused QKV projection."""

from __future__ import annotations

from typing import Any

import torch

from ascend_ops_core.cases import Case, Inputs

BF16, F16, F32 = torch.bfloat16, torch.float16, torch.float32


def _table(new: Inputs, positions: int, rotary: int, dtype: torch.dtype = F32) -> torch.Tensor:
    """A rotary table of ``positions`` rows."""
    if new.device == "meta":
        return torch.empty(positions, rotary, dtype=dtype, device="meta")
    pairs = torch.arange(rotary // 2)
    angle = torch.arange(positions)[:, None] * 100.0 ** (-2 * pairs / rotary)
    return torch.cat((angle.cos(), angle.sin()), dim=-1).to(dtype)


def _one(
    new: Inputs,
    tokens: int,
    heads: tuple[int, int, int],
    rotary: int,
    *,
    dtype: torch.dtype = F32,
    table: torch.dtype = F32,
    weights: bool = True,
    bias: bool = False,
    gated: bool = False,
    sections: tuple[int, int, int] | None = None,
    interleaved: bool = False,
    index: torch.dtype = torch.int64,
) -> tuple[Any, ...]:
    q_heads, kv_heads, dim = heads
    width = (q_heads * (2 if gated else 1) + 2 * kv_heads) * dim
    shape = (tokens,) if sections is None else (3, tokens)
    norm = [new.randn(dim, dtype=dtype) if given else None for given in [weights] * 2 + [bias] * 2]
    leading = (
        new.randn(tokens, width, dtype=dtype),
        _table(new, 50, rotary, table),
        new.randint(0, 50, *shape, dtype=index),
        *norm,
    )
    if sections is None:
        return (*leading, q_heads, kv_heads, dim, 1e-6, gated)
    return (*leading, list(sections), interleaved, q_heads, kv_heads, dim, 1e-6, gated)


def _strided(new: Inputs) -> tuple[Any, ...]:
    arguments = _one(new, 3, (2, 1, 16), 16, index=torch.int32)
    return (new.randn(3, 100)[:, 20:84], *arguments[1:])


def _strided_mrope(new: Inputs) -> tuple[Any, ...]:
    arguments = _one(new, 3, (2, 1, 16), 16, dtype=F16, sections=(3, 3, 2))
    positions = new.randint(0, 50, 3, 6)[:, ::2]
    return (new.randn(3, 100, dtype=F16)[:, 20:84], arguments[1], positions, *arguments[3:])


def _apply(
    new: Inputs,
    tokens: int,
    heads: tuple[int, int, int],
    rotary: int,
    totals: tuple[int, int],
    dtype: torch.dtype = F32,
    table: torch.dtype = F32,
) -> tuple[Any, ...]:
    q_heads, kv_heads, dim = heads
    return (
        new.randn(tokens, (q_heads + 2 * kv_heads) * dim, dtype=dtype),
        new.rand(2, tokens) + new.full(100.0, 2, tokens),
        _table(new, 50, rotary, table),
        new.randint(0, 50, tokens),
        new.randn(q_heads * dim, dtype=dtype),
        new.randn(kv_heads * dim, dtype=dtype),
        q_heads,
        kv_heads,
        dim,
        *totals,
        1e-6,
    )


def _strided_apply(new: Inputs) -> tuple[Any, ...]:
    arguments = _apply(new, 3, (2, 1, 16), 16, (9, 3), F16)
    sums = new.rand(3, 2) + new.full(100.0, 3, 2)
    return (new.randn(3, 100, dtype=F16)[:, 20:84], sums.t(), *arguments[2:])


CASES: dict[str, tuple[Case, ...]] = {
    "split_qkv_rmsnorm_rope": (
        Case("no_tokens", lambda new: _one(new, 0, (4, 2, 16), 16)),
        Case("one", lambda new: _one(new, 1, (1, 1, 2), 2, weights=False)),
        Case("odd", lambda new: _one(new, 3, (5, 3, 18), 18, bias=True)),
        Case("partial", lambda new: _one(new, 9, (4, 1, 32), 8, dtype=BF16)),
        Case("gated", lambda new: _one(new, 7, (3, 1, 20), 12, dtype=F16, gated=True)),
        Case("many_tokens", lambda new: _one(new, 147, (4, 2, 20), 12, bias=True)),
        Case("many_tokens_one_key", lambda new: _one(new, 97, (5, 1, 12), 12, gated=True)),
        Case("bf16_table", lambda new: _one(new, 9, (4, 1, 32), 8, dtype=BF16, table=BF16)),
        Case("f16_table", lambda new: _one(new, 7, (3, 1, 20), 12, table=F16)),
        Case("strided", _strided),
        Case(
            "qwen3_tp4",
            lambda new: _one(new, 4096, (16, 2, 128), 128, dtype=BF16),
            large=True,
        ),
        Case(
            "qwen3_tp8_bias",
            lambda new: _one(new, 256, (8, 1, 128), 128, dtype=BF16, bias=True),
            large=True,
        ),
        Case(
            "qwen3_32b",
            lambda new: _one(new, 4096, (64, 8, 128), 128, dtype=BF16),
            large=True,
        ),
        Case(
            "qwen3_32b_bf16_table",
            lambda new: _one(new, 4096, (64, 8, 128), 128, dtype=BF16, table=BF16),
            large=True,
        ),
        Case(
            "qwen3_next",
            lambda new: _one(new, 512, (16, 2, 256), 64, dtype=BF16, gated=True),
            large=True,
        ),
        Case(
            "qwen3_next_tp2",
            lambda new: _one(new, 512, (8, 1, 256), 64, dtype=BF16, gated=True),
            large=True,
        ),
    ),
    "split_qkv_rmsnorm_mrope": (
        Case("no_tokens", lambda new: _one(new, 0, (4, 2, 16), 16, sections=(4, 2, 2))),
        Case("in_order", lambda new: _one(new, 3, (3, 1, 16), 16, sections=(3, 3, 2))),
        Case(
            "interleaved",
            lambda new: _one(
                new, 7, (2, 1, 36), 36, sections=(8, 4, 6), interleaved=True, dtype=BF16
            ),
        ),
        Case(
            "gated",
            lambda new: _one(
                new, 3, (2, 1, 24), 16, sections=(4, 2, 2), interleaved=True, bias=True, gated=True
            ),
        ),
        Case(
            "bf16_table",
            lambda new: _one(new, 9, (2, 1, 36), 36, sections=(8, 4, 6), dtype=BF16, table=BF16),
        ),
        Case(
            "many_tokens",
            lambda new: _one(new, 97, (2, 1, 24), 24, sections=(4, 4, 4), interleaved=True),
        ),
        Case("strided", _strided_mrope),
        Case(
            "qwen3_vl",
            lambda new: _one(
                new, 4096, (32, 8, 128), 128, sections=(24, 20, 20), interleaved=True, dtype=BF16
            ),
            large=True,
        ),
        Case(
            "qwen2_vl_order",
            lambda new: _one(new, 512, (8, 1, 128), 128, sections=(16, 24, 24), dtype=BF16),
            large=True,
        ),
    ),
    "split_qkv_tp_variance": (
        Case("no_tokens", lambda new: (new.randn(0, 64), 2, 1, 16, 1)),
        Case("one", lambda new: (new.randn(1, 8), 2, 1, 2, 1)),
        Case("odd", lambda new: (new.randn(65, 11 * 18, dtype=F16), 5, 3, 18, 3)),
        Case("no_query_heads", lambda new: (new.randn(3, 64), 0, 2, 16, 2)),
        Case("strided", lambda new: (new.randn(3, 5000)[:, 7:4999], 25, 7, 128, 1), scale=50.0),
        Case("m3_tp8", lambda new: (new.randn(4096, 1280, dtype=BF16), 8, 1, 128, 2), large=True),
        Case("m3_tp1", lambda new: (new.randn(512, 9216, dtype=BF16), 64, 4, 128, 1), large=True),
    ),
    "split_qkv_tp_apply": (
        Case("no_tokens", lambda new: _apply(new, 0, (4, 2, 16), 16, (8, 4))),
        Case("odd", lambda new: _apply(new, 3, (5, 3, 18), 10, (9, 3))),
        Case("half", lambda new: _apply(new, 9, (2, 1, 32), 32, (10, 3), BF16)),
        Case("bf16_table", lambda new: _apply(new, 9, (2, 1, 32), 32, (10, 3), BF16, BF16)),
        Case("many_tokens", lambda new: _apply(new, 147, (3, 2, 20), 12, (9, 3))),
        Case("many_tokens_one_key", lambda new: _apply(new, 97, (2, 1, 16), 16, (9, 3))),
        Case("strided", _strided_apply),
        Case("no_query_heads", lambda new: _apply(new, 3, (0, 1, 16), 16, (9, 3))),
        Case(
            "m3_tp8",
            lambda new: _apply(new, 4096, (8, 1, 128), 64, (64, 4), BF16),
            large=True,
        ),
        Case(
            "m3_tp8_decode",
            lambda new: _apply(new, 32, (8, 1, 128), 64, (64, 4), BF16),
            large=True,
        ),
        Case(
            "m3_tp1",
            lambda new: _apply(new, 512, (64, 4, 128), 64, (64, 4), BF16),
            large=True,
        ),
    ),
}
