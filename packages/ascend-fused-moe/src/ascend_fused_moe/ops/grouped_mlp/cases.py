"""Inputs of the grouped products."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from ascend_ops_core.cases import Case, Inputs

BF16, F16, F32 = torch.bfloat16, torch.float16, torch.float32
I8, I64, U8 = torch.int8, torch.int64, torch.uint8
E4M3 = torch.float8_e4m3fn

_COUNTS = {
    "none": (0, 0, 0),
    "one": (1,),
    "odd": (2, 0, 3),
    "all_at_one": (0, 9, 0, 0),
    "ragged": (1, 0, 17, 0, 0, 45, 0, 2),
}


def _groups(new: Inputs, counts: Sequence[int], cumulative: bool) -> tuple[torch.Tensor, bool]:
    values = list(counts)
    if cumulative:
        values = [sum(counts[: i + 1]) for i in range(len(counts))]
    return new.tensor(values, I64), cumulative


def _even(rows: int, groups: int) -> tuple[int, ...]:
    return tuple(rows // groups + (g < rows % groups) for g in range(groups))


def _plain(
    name: str,
    counts: Sequence[int],
    inner: int,
    outer: int,
    dtype: torch.dtype,
    *,
    cumulative: bool = False,
    bias: torch.dtype | None = None,
    large: bool = False,
) -> Case:
    def make(new: Inputs) -> tuple[Any, ...]:
        return (
            new.randn(sum(counts), inner, dtype=dtype),
            new.randn(len(counts), outer, inner, dtype=dtype, scale=inner**-0.5),
            *_groups(new, counts, cumulative),
            None if bias is None else new.randn(len(counts), outer, dtype=bias),
        )

    return Case(name, make, large=large, scale=2.0)


def _strided_rows(new: Inputs) -> tuple[Any, ...]:
    groups = _groups(new, (3, 0, 6), True)
    return new.randn(9, 40)[:, 3:22], new.randn(3, 7, 19, scale=0.2), *groups, None


def _codes(new: Inputs, dtype: torch.dtype, *shape: int) -> torch.Tensor:
    """Values of a format: small integers, pairs of FP4, or float8."""
    if dtype == I8:
        return new.randint(-127, 128, *shape, dtype=I8)
    if dtype == U8:
        return new.randint(0, 256, *shape, dtype=U8)
    return new.randn(*shape, scale=100.0).to(dtype)


def _powers(new: Inputs, *shape: int) -> torch.Tensor:
    return new.randint(115, 122, *shape, dtype=U8)


def _scales(new: Inputs, dtype: torch.dtype, *shape: int) -> torch.Tensor:
    if dtype == U8:
        return _powers(new, *shape)
    return (new.rand(*shape) * 0.01 + 0.001).to(dtype)


def _quantized(
    name: str,
    counts: Sequence[int],
    inner: int,
    outer: int,
    weights: str,
    *,
    rows: str | None = None,
    dtype: torch.dtype = BF16,
    scale_dtype: torch.dtype = F32,
    cumulative: bool = False,
    bias: torch.dtype | None = None,
    shares: int | None = None,
    large: bool = False,
) -> Case:
    rows = rows or weights
    shapes = {
        "int8": (inner, I8, ()),
        "fp8_block": (inner, E4M3, (-(-inner // 128),)),
        "mxfp8": (inner, E4M3, (inner // 32,)),
        "mxfp4": (inner // 2, U8, (inner // 32,)),
        "float": (inner, dtype, None),
    }
    stored = {
        "int8": (inner, I8, (outer,)),
        "int4": (inner // 2, U8, (outer,) if shares is None else (outer, shares)),
        "fp8_block": (inner, E4M3, (-(-outer // 128), -(-inner // 128))),
        "mxfp8": (inner, E4M3, (outer, inner // 32)),
        "mxfp4": (inner // 2, U8, (outer, inner // 32)),
    }

    def make(new: Inputs) -> tuple[Any, ...]:
        width, row_dtype, row_scales = shapes[rows]
        kept, weight_dtype, weight_scales = stored[weights]
        total, groups = sum(counts), len(counts)
        x = (
            new.randn(total, width, dtype=dtype)
            if rows == "float"
            else _codes(new, row_dtype, total, width)
        )
        of_rows = U8 if rows in ("mxfp8", "mxfp4") else F32
        if rows == "fp8_block" and scale_dtype == U8:
            of_rows = U8
        of_weights = U8 if weights in ("mxfp8", "mxfp4") else scale_dtype
        return (
            x,
            None if row_scales is None else _scales(new, of_rows, total, *row_scales),
            _codes(new, weight_dtype, groups, outer, kept),
            _scales(new, of_weights, groups, *weight_scales),
            *_groups(new, counts, cumulative),
            None if bias is None else new.randn(groups, outer, dtype=bias),
            rows,
            weights,
            dtype,
        )

    return Case(name, make, large=large, scale=64.0)


def _int8(
    name: str,
    counts: Sequence[int],
    inner: int,
    outer: int,
    *,
    cumulative: bool = False,
    large: bool = False,
) -> Case:
    def make(new: Inputs) -> tuple[Any, ...]:
        return (
            _codes(new, I8, sum(counts), inner),
            _codes(new, I8, len(counts), outer, inner),
            *_groups(new, counts, cumulative),
        )

    return Case(name, make, large=large)


def _fused(
    name: str,
    counts: Sequence[int],
    inner: int,
    outer: int,
    *,
    cumulative: bool = False,
    large: bool = False,
) -> Case:
    def make(new: Inputs) -> tuple[Any, ...]:
        return (
            _codes(new, I8, sum(counts), inner),
            _scales(new, F32, sum(counts)),
            _codes(new, I8, len(counts), inner, outer),
            _scales(new, F32, len(counts), outer),
            *_groups(new, counts, cumulative),
        )

    return Case(name, make, large=large)


CASES: dict[str, tuple[Case, ...]] = {
    "grouped_matmul": (
        _plain("no_rows", _COUNTS["none"], 8, 4, F32),
        _plain("one", _COUNTS["one"], 1, 1, F32),
        _plain("odd", _COUNTS["odd"], 19, 37, F32, bias=F32),
        _plain("half", _COUNTS["all_at_one"], 33, 16, F16, cumulative=True),
        _plain("bfloat16", _COUNTS["ragged"], 64, 40, BF16, bias=F32),
        _plain("bias_of_x", _COUNTS["odd"], 16, 24, BF16, cumulative=True, bias=BF16),
        _plain("tiles", _COUNTS["ragged"], 257, 130, F32, bias=F16),
        Case("strided", _strided_rows, scale=2.0),
        _plain("v4_flash_w13", _even(6144, 256), 4096, 4096, BF16, large=True),
        _plain("v4_flash_float", _even(6144, 256), 4096, 4096, F32, large=True),
        _plain("v4_pro_w2", _even(6144, 384), 3072, 7168, BF16, cumulative=True, large=True),
    ),
    "grouped_matmul_quantized": (
        _quantized("no_rows", _COUNTS["none"], 32, 4, "int8"),
        _quantized("int8", _COUNTS["odd"], 19, 37, "int8", scale_dtype=BF16),
        _quantized("int8_one", _COUNTS["one"], 8, 8, "int8", scale_dtype=BF16, bias=F32),
        _quantized("int8_half", _COUNTS["ragged"], 64, 40, "int8", dtype=F16, cumulative=True),
        _quantized("int8_float", _COUNTS["odd"], 64, 40, "int8", dtype=F32, bias=F32),
        _quantized("int4", _COUNTS["odd"], 38, 24, "int4", rows="int8"),
        _quantized("int4_shares", _COUNTS["odd"], 64, 24, "int4", rows="int8", shares=2),
        _quantized("blocks", _COUNTS["odd"], 130, 200, "fp8_block", dtype=F32),
        _quantized("blocks_powers", _COUNTS["odd"], 256, 72, "fp8_block", scale_dtype=U8),
        _quantized("mxfp8", _COUNTS["odd"], 64, 48, "mxfp8", bias=BF16),
        _quantized("mxfp8_odd", _COUNTS["ragged"], 96, 7, "mxfp8", dtype=F32, cumulative=True),
        _quantized("mxfp4", _COUNTS["odd"], 128, 16, "mxfp4"),
        _quantized("fp4_of_fp8", _COUNTS["odd"], 96, 24, "mxfp4", rows="mxfp8", dtype=F32),
        _quantized("fp4_of_float", _COUNTS["odd"], 64, 24, "mxfp4", rows="float", bias=F32),
        _quantized("int8_of_float", _COUNTS["odd"], 19, 37, "int8", rows="float", dtype=F32),
        _quantized("int4_of_float", _COUNTS["ragged"], 64, 24, "int4", rows="float", shares=2),
        _quantized("blocks_of_float", _COUNTS["odd"], 130, 200, "fp8_block", rows="float"),
        _quantized("mxfp8_of_float", _COUNTS["ragged"], 96, 7, "mxfp8", rows="float", bias=BF16),
        _quantized("v4_int8", _even(6144, 256), 4096, 4096, "int8", scale_dtype=BF16, large=True),
        _quantized("v4_blocks", _even(6144, 256), 2048, 4096, "fp8_block", large=True),
        _quantized("v4_mxfp8", _even(6144, 384), 7168, 6144, "mxfp8", large=True),
        _quantized("v4_mxfp4", _even(6144, 384), 3072, 7168, "mxfp4", large=True),
    ),
    "grouped_matmul_int32": (
        _int8("no_rows", _COUNTS["none"], 8, 4),
        _int8("one", _COUNTS["one"], 1, 1),
        _int8("odd", _COUNTS["odd"], 19, 37),
        _int8("ragged", _COUNTS["ragged"], 64, 40, cumulative=True),
        _int8("v4_flash_w13", _even(6144, 256), 4096, 4096, large=True),
    ),
    "grouped_matmul_swiglu_quant": (
        _fused("no_rows", _COUNTS["none"], 8, 4),
        _fused("odd", _COUNTS["odd"], 19, 38),
        _fused("ragged", _COUNTS["ragged"], 64, 64, cumulative=True),
        _fused("v4_flash_w13", _even(6144, 256), 4096, 4096, large=True),
    ),
}
