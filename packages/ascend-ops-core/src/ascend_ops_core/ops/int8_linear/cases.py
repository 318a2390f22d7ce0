"""Inputs of the products of int8."""

from __future__ import annotations

from typing import Any

import torch

from ascend_ops_core.cases import Case, Inputs

BF16, F16, F32, I8 = torch.bfloat16, torch.float16, torch.float32, torch.int8


def _given(new: Inputs, tokens: int, rows: int, width: int, dtype: torch.dtype) -> tuple[Any, ...]:
    return (
        new.randint(-128, 128, tokens, width, dtype=I8),
        new.rand(tokens) * 0.01,
        new.randint(-128, 128, rows, width, dtype=I8),
        new.rand(rows) * 0.01,
        dtype,
    )


def _case(
    name: str, tokens: int, rows: int, width: int, dtype: torch.dtype, *, large: bool = False
) -> Case:
    sizes = tokens, rows, width
    return Case(name, lambda new: _given(new, *sizes, dtype), large=large, scale=64)


def _zeros(new: Inputs) -> tuple[Any, ...]:
    """A token and a channel with scale 0, as zeros are quantised."""
    x, x_scale, weight, weight_scale, dtype = _given(new, 3, 5, 64, BF16)
    if x.device.type == "cpu":
        x_scale[1] = weight_scale[2] = 0
    return x, x_scale, weight, weight_scale, dtype


CASES: dict[str, tuple[Case, ...]] = {
    "int8_linear": (
        _case("no_tokens", 0, 5, 64, BF16),
        _case("one", 1, 1, 1, F16),
        _case("odd", 3, 65, 63, BF16),
        _case("half", 17, 33, 128, F16),
        _case("float32", 5, 19, 64, F32),
        Case("zeros", _zeros, scale=64),
        _case("v4_flash", 64, 4096, 1024, BF16, large=True),
        _case("v3_o_proj", 64, 7168, 16384, BF16, large=True),
    ),
}
