"""Rows of quantised weights in float32, for numba kernels that multiply them right away.

A kernel turns a few rows into float32 in memory of its own, uses them, and goes on to the next:
no weight ever has a whole float32 copy.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from llvmlite import ir
from numba import njit, types
from numba.extending import intrinsic

from ascend_ops_core.cpu_numeric import FASTMATH

KINDS = {"float8_e4m3fn": 0, "int8": 1, "float4_e2m1fn": 2, "int4": 3}
"""Numbers of the codes in kernels."""

_NO_ROWS = np.zeros(0, dtype=np.int32)
_E4M3_NORMAL = np.int32(120 << 23)
_E2M1_NORMAL = np.int32(126 << 23)
_E4M3_SUBNORMAL = np.float32(2.0**-9)
_HALF, _NAN = np.float32(0.5), np.float32(np.nan)


@intrinsic
def _float_of(typingctx: Any, bits: Any) -> tuple[Any, Callable[..., Any]]:
    """The float32 with these bits."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.bitcast(args[0], ir.FloatType())

    return types.float32(types.int32), codegen


@intrinsic
def _scale_of(typingctx: Any, value: Any) -> tuple[Any, Callable[..., Any]] | None:
    """A float32 as it is, or the power of two behind a byte; 255 is NaN."""
    if value not in (types.float32, types.uint8):
        return None

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        if value == types.float32:
            return args[0]
        i32 = ir.IntType(32)
        code = builder.zext(args[0], i32)
        bits = builder.shl(code, ir.Constant(i32, 23))
        # 2^-127 is no normal number.
        least = builder.icmp_unsigned("==", code, ir.Constant(i32, 0))
        bits = builder.select(least, ir.Constant(i32, 0x00400000), bits)
        nan = builder.icmp_unsigned("==", code, ir.Constant(i32, 255))
        bits = builder.select(nan, ir.Constant(i32, 0x7FC00000), bits)
        return builder.bitcast(bits, ir.FloatType())

    return types.float32(value), codegen


def code_bytes(weight: torch.Tensor) -> np.ndarray[Any, Any]:
    """A numpy view of a weight's codes as bytes."""
    return weight.detach().view(torch.uint8).numpy()


def scale_array(scale: torch.Tensor) -> np.ndarray[Any, Any]:
    """A numpy view of scales: powers of two as their bytes, others in float32."""
    plain = scale.detach()
    return (plain if plain.dtype == torch.uint8 else plain.float()).numpy()


def row_map(scale_rows: torch.Tensor | None) -> np.ndarray[Any, Any]:
    """The map of rows to rows of scales for kernels; without entries where each has its own."""
    return _NO_ROWS if scale_rows is None else scale_rows.numpy()


@njit(fastmath=FASTMATH, cache=True)
def _e4m3(codes, first, last, factor, out):  # type: ignore[no-untyped-def]
    for k in range(first, last):
        code = np.int32(codes[k])
        size = code & np.int32(0x7F)
        normal = _float_of((size << np.int32(20)) + _E4M3_NORMAL)
        value = np.float32(size) * _E4M3_SUBNORMAL if size < 8 else normal
        value = _NAN if size == 0x7F else value
        out[k] = (-value if code > 0x7F else value) * factor


@njit(fastmath=FASTMATH, cache=True)
def _int8(codes, first, last, factor, out):  # type: ignore[no-untyped-def]
    for k in range(first, last):
        out[k] = np.float32(np.int8(codes[k])) * factor


@njit(fastmath=FASTMATH, cache=True)
def _e2m1_value(code):  # type: ignore[no-untyped-def]
    size = code & np.int32(7)
    normal = _float_of((size << np.int32(22)) + _E2M1_NORMAL)
    value = np.float32(size) * _HALF if size < 2 else normal
    return -value if code > 7 else value


@njit(fastmath=FASTMATH, cache=True)
def _e2m1(codes, first, last, factor, out):  # type: ignore[no-untyped-def]
    for b in range(first // 2, last // 2):
        code = np.int32(codes[b])
        out[2 * b] = _e2m1_value(code & np.int32(15)) * factor
        out[2 * b + 1] = _e2m1_value(code >> np.int32(4)) * factor


@njit(fastmath=FASTMATH, cache=True)
def _int4(codes, first, last, factor, out):  # type: ignore[no-untyped-def]
    for b in range(first // 2, last // 2):
        code = np.int32(codes[b])
        low = ((code & np.int32(15)) ^ np.int32(8)) - np.int32(8)
        high = ((code >> np.int32(4)) ^ np.int32(8)) - np.int32(8)
        out[2 * b] = np.float32(low) * factor
        out[2 * b + 1] = np.float32(high) * factor


@njit(fastmath=FASTMATH, cache=True)
def dequantize_rows(  # type: ignore[no-untyped-def]
    codes, kind, scale, scale_rows, columns, first_column, first, last, out
):
    """``out[i]`` is row ``first + i`` of a weight in float32, up to row ``last``.

    Args:
        codes: ``[N, K]``, or ``[N, K / 2]`` with two values in a byte; uint8.
        kind: one of :data:`KINDS`.
        scale: ``[S, C]`` float32, or uint8 for powers of two.
        scale_rows: ``[N]`` int32 rows of ``scale``; without entries row ``n`` has row ``n``.
        columns: columns that share a scale; 0 for all.
        first_column: place of column 0 among those that share its scale.
        first: first row.
        last: end of the rows.
        out: ``[>= last - first, K]`` float32.
    """
    width = out.shape[1]
    share = columns if columns > 0 else width + first_column
    for n in range(first, last):
        factors = scale[scale_rows[n]] if scale_rows.shape[0] > 0 else scale[n]
        source = codes[n]
        target = out[n - first]
        k = 0
        block = 0
        while k < width:
            end = min(width, (block + 1) * share - first_column)
            factor = _scale_of(factors[block])
            if kind == 0:
                _e4m3(source, k, end, factor, target)
            elif kind == 1:
                _int8(source, k, end, factor, target)
            elif kind == 2:
                _e2m1(source, k, end, factor, target)
            else:
                _int4(source, k, end, factor, target)
            k = end
            block += 1
