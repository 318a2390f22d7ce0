"""Inputs of the products with quantised weights."""

from __future__ import annotations

from typing import Any

import torch

from ascend_ops_core.cases import Case, Inputs

BF16, F16, F32 = torch.bfloat16, torch.float16, torch.float32
U8, I32 = torch.uint8, torch.int32


def _codes(new: Inputs, rows: int, width: int, codes: str) -> torch.Tensor:
    if codes in ("float4_e2m1fn", "int4"):
        return new.randint(0, 256, rows, width // 2, dtype=U8)
    if codes == "int8":
        return new.randint(-128, 128, rows, width, dtype=torch.int8)
    if new.device == "meta":
        return torch.empty(rows, width, dtype=torch.float8_e4m3fn, device="meta")
    # Every finite value, the largest and the subnormal ones among them.
    size = new.randint(0, 0x7F, rows, width, dtype=U8)
    return (size | new.randint(0, 2, rows, width, dtype=U8) * 0x80).view(torch.float8_e4m3fn)


def _given(
    new: Inputs,
    tokens: int,
    rows: int,
    width: int,
    codes: str,
    share: tuple[int, int],
    dtype: torch.dtype,
    powers: bool,
    first_column: int,
) -> tuple[Any, ...]:
    height, columns = share
    blocks = -(-(width + first_column) // columns) if columns else 1
    scale_rows = None
    count = rows
    if height > 1:
        count = -(-rows // height)
        scale_rows = new.randint(0, count, rows, dtype=I32)
    scale = (
        new.randint(118, 124, count, blocks, dtype=U8) if powers else new.rand(count, blocks) * 0.02
    )
    return (
        new.randn(tokens, width, dtype=dtype),
        _codes(new, rows, width, codes),
        scale,
        scale_rows,
        columns,
        first_column,
        codes,
    )


def _case(
    name: str,
    tokens: int,
    rows: int,
    width: int,
    codes: str,
    share: tuple[int, int],
    dtype: torch.dtype = F32,
    *,
    powers: bool = False,
    first_column: int = 0,
    large: bool = False,
) -> Case:
    given = tokens, rows, width, codes, share, dtype, powers, first_column
    return Case(name, lambda new: _given(new, *given), large=large, scale=64)


def _special_blocks(new: Inputs) -> tuple[Any, ...]:
    """A block of scale 0, one of zeros, and one of the smallest power of two."""
    x, weight, scale, _, columns, first, codes = _given(
        new, 3, 4, 96, "float8_e4m3fn", (1, 32), F32, True, 0
    )
    if x.device.type == "cpu":
        scale[0, 0] = 0
        weight.view(U8)[1, 32:64] = 0
        weight.view(U8)[2, :32] = 0x80
    return x, weight, scale, None, columns, first, codes


CASES: dict[str, tuple[Case, ...]] = {
    "dequantized_linear": (
        _case("no_rows", 0, 5, 64, "int8", (1, 0)),
        _case("one", 1, 1, 2, "int4", (1, 0)),
        _case("blocks", 3, 300, 200, "float8_e4m3fn", (128, 128)),
        _case("slice_of_blocks", 5, 63, 190, "float8_e4m3fn", (128, 128), BF16, first_column=65),
        _case("powers", 17, 65, 160, "float8_e4m3fn", (128, 128), powers=True, first_column=96),
        _case("mxfp8", 2, 33, 96, "float8_e4m3fn", (1, 32), powers=True),
        _case("mxfp4", 65, 37, 96, "float4_e2m1fn", (1, 32), BF16, powers=True),
        _case("mxfp4_slice", 4, 19, 64, "float4_e2m1fn", (1, 32), powers=True, first_column=16),
        _case("int8", 3, 63, 65, "int8", (1, 0), F16),
        _case("int4", 7, 18, 34, "int4", (1, 0)),
        _case("tensor", 4, 21, 40, "float8_e4m3fn", (64, 0)),
        Case("special_blocks", _special_blocks, scale=64),
        _case(
            "v4_flash", 64, 4096, 1024, "float8_e4m3fn", (128, 128), BF16, powers=True, large=True
        ),
        _case("v3_o_proj", 64, 7168, 16384, "float8_e4m3fn", (128, 128), BF16, large=True),
    ),
}
