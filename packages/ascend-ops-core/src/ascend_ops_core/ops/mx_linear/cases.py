"""Inputs of the products of MXFP8 values."""

from __future__ import annotations

from typing import Any

import torch

from ascend_ops_core.cases import Case, Inputs

BF16, F16, F32 = torch.bfloat16, torch.float16, torch.float32
FP8, U8 = torch.float8_e4m3fn, torch.uint8


def _operand(new: Inputs, first: int, second: int, inner: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Finite values of every kind, and scales around the inverse of their magnitude."""
    if new.device == "meta":
        values = torch.empty(first, second, inner, dtype=FP8, device="meta")
    else:
        magnitude = new.randint(0, 0x7F, first, second, inner, dtype=U8)
        sign = new.randint(0, 2, first, second, inner, dtype=U8)
        values = (magnitude | sign * 0x80).view(FP8)
    return values, new.randint(118, 123, first, second, inner // 32, dtype=U8)


def _product(
    new: Inputs, tokens: int, groups: int, rows: int, inner: int, dtype: torch.dtype
) -> tuple[Any, ...]:
    return (
        *_operand(new, tokens, groups, inner),
        *_operand(new, groups, rows, inner),
        dtype,
    )


CASES: dict[str, tuple[Case, ...]] = {
    "mxfp8_grouped_linear": (
        Case("no_tokens", lambda new: _product(new, 0, 2, 5, 64, BF16)),
        Case("one", lambda new: _product(new, 1, 1, 1, 64, BF16), scale=64),
        Case("odd", lambda new: _product(new, 7, 3, 65, 192, BF16), scale=64),
        Case("half", lambda new: _product(new, 5, 2, 33, 128, F16), scale=64),
        Case("one_block", lambda new: _product(new, 3, 2, 9, 32, F32), scale=64),
        Case("v4_flash", lambda new: _product(new, 64, 8, 1024, 4096, BF16), large=True),
        Case("v4_flash_rows", lambda new: _product(new, 64, 1, 4096, 8192, BF16), large=True),
    ),
}
