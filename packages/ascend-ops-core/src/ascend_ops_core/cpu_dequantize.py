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
_I32, _F32 = ir.IntType(32), ir.FloatType()
_NAN_BITS = 0x7FC00000
_SHORT_BLOCK = 64


def _whole(value: int) -> Any:
    return ir.Constant(_I32, value)


def _e4m3_bits(builder: Any, code: Any) -> Any:
    size = builder.and_(code, _whole(0x7F))
    sign = builder.shl(builder.and_(code, _whole(0x80)), _whole(24))
    normal = builder.add(builder.shl(size, _whole(20)), _whole(120 << 23))
    small = builder.fmul(builder.uitofp(size, _F32), ir.Constant(_F32, 2.0**-9))
    bits = builder.select(
        builder.icmp_unsigned("<", size, _whole(8)), builder.bitcast(small, _I32), normal
    )
    bits = builder.select(builder.icmp_unsigned("==", size, _whole(0x7F)), _whole(_NAN_BITS), bits)
    return builder.or_(bits, sign)


def _e2m1_bits(builder: Any, code: Any) -> Any:
    size = builder.and_(code, _whole(7))
    sign = builder.shl(builder.and_(code, _whole(8)), _whole(28))
    normal = builder.add(builder.shl(size, _whole(22)), _whole(126 << 23))
    # Of the two sizes that are no normal numbers one is 0, the other 0.5.
    small = builder.mul(size, _whole(126 << 23))
    bits = builder.select(builder.icmp_unsigned("<", size, _whole(2)), small, normal)
    return builder.or_(bits, sign)


def _int4_bits(builder: Any, code: Any) -> Any:
    flipped = builder.xor(builder.and_(code, _whole(15)), _whole(8))
    value = builder.sitofp(builder.sub(flipped, _whole(8)), _F32)
    return builder.bitcast(value, _I32)


def _value_of(bits: Callable[[Any, Any], Any], shift: int) -> Callable[..., Any]:
    """A byte, or its upper half, as float32; numba's own integers would become 64 bits wide."""

    @intrinsic
    def value(typingctx: Any, code: Any) -> Any:
        def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            wide = builder.zext(args[0], _I32)
            if shift:
                wide = builder.lshr(wide, _whole(shift))
            return builder.bitcast(bits(builder, wide), _F32)

        return types.float32(types.uint8), codegen

    made: Callable[..., Any] = value
    return made


_e4m3_value = _value_of(_e4m3_bits, 0)
_e2m1_low, _e2m1_high = _value_of(_e2m1_bits, 0), _value_of(_e2m1_bits, 4)
_int4_low, _int4_high = _value_of(_int4_bits, 0), _value_of(_int4_bits, 4)


@intrinsic
def _scale_of(typingctx: Any, value: Any) -> tuple[Any, Callable[..., Any]] | None:
    """A float32 as it is, or the power of two behind a byte; 255 is NaN."""
    if value not in (types.float32, types.uint8):
        return None

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        if value == types.float32:
            return args[0]
        code = builder.zext(args[0], _I32)
        bits = builder.shl(code, _whole(23))
        # 2^-127 is no normal number.
        least = builder.icmp_unsigned("==", code, _whole(0))
        bits = builder.select(least, _whole(0x00400000), bits)
        nan = builder.icmp_unsigned("==", code, _whole(255))
        bits = builder.select(nan, _whole(_NAN_BITS), bits)
        return builder.bitcast(bits, _F32)

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


# Indices are unsigned: one that might be negative keeps LLVM from vectorising, and slices cost more
# than a block.


@njit(fastmath=FASTMATH, cache=True)
def _e4m3(codes, first, last, factor, out):  # type: ignore[no-untyped-def]
    for k in range(first, last):
        out[k] = _e4m3_value(codes[k]) * factor


@njit(fastmath=FASTMATH, cache=True)
def _int8(codes, first, last, factor, out):  # type: ignore[no-untyped-def]
    for k in range(first, last):
        out[k] = np.float32(np.int8(codes[k])) * factor


@njit(fastmath=FASTMATH, cache=True)
def _e2m1(codes, first, last, factor, out):  # type: ignore[no-untyped-def]
    two = np.uintp(2)
    for b in range(first // two, last // two):
        out[two * b] = _e2m1_low(codes[b]) * factor
        out[two * b + np.uintp(1)] = _e2m1_high(codes[b]) * factor


@njit(fastmath=FASTMATH, cache=True)
def _int4(codes, first, last, factor, out):  # type: ignore[no-untyped-def]
    two = np.uintp(2)
    for b in range(first // two, last // two):
        out[two * b] = _int4_low(codes[b]) * factor
        out[two * b + np.uintp(1)] = _int4_high(codes[b]) * factor


@njit(fastmath=FASTMATH, cache=True)
def _decode(codes, kind, first, last, factor, out):  # type: ignore[no-untyped-def]
    if kind == 0:
        _e4m3(codes, first, last, factor, out)
    elif kind == 1:
        _int8(codes, first, last, factor, out)
    elif kind == 2:
        _e2m1(codes, first, last, factor, out)
    else:
        _int4(codes, first, last, factor, out)


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
    # A loop over a short block is hardly vectorised: then a row is decoded whole, and scaled after.
    short = share < _SHORT_BLOCK
    for n in range(first, last):
        factors = scale[scale_rows[n]] if scale_rows.shape[0] > 0 else scale[n]
        source = codes[n]
        target = out[n - first]
        if short:
            _decode(source, kind, np.uintp(0), np.uintp(width), np.float32(1), target)
        k = 0
        block = 0
        while k < width:
            end = min(width, (block + 1) * share - first_column)
            factor = _scale_of(factors[block])
            start, stop = np.uintp(k), np.uintp(end)
            if short:
                for i in range(start, stop):
                    target[i] *= factor
            else:
                _decode(source, kind, start, stop, factor, target)
            k = end
            block += 1
