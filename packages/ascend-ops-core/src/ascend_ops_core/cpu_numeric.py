"""Shared pieces of the numba kernels: bfloat16 access and the flags they are compiled with.

numba has no bfloat16, so kernels see such a tensor as its uint16 bits and widen each value with
:func:`bf16_to_f32`.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from llvmlite import ir
from numba import njit, types
from numba.core import cgutils
from numba.extending import intrinsic
from numba.np.arrayobj import populate_array

# Reassociation lets LLVM vectorise float sums; NaN and infinity keep their meaning, which masks
# and poisoned buffers rely on.
FASTMATH = {"reassoc", "contract", "nsz", "arcp"}


def _widened(builder: Any, bits: Any) -> Any:
    i32 = ir.IntType(32)
    wide = builder.shl(builder.zext(bits, i32), ir.Constant(i32, 16))
    return builder.bitcast(wide, ir.FloatType())


def _rounded(builder: Any, value: Any) -> Any:
    i32, i16 = ir.IntType(32), ir.IntType(16)
    bits = builder.bitcast(value, i32)
    odd = builder.and_(builder.lshr(bits, ir.Constant(i32, 16)), ir.Constant(i32, 1))
    rounded = builder.add(bits, builder.add(odd, ir.Constant(i32, 0x7FFF)))
    is_nan = builder.fcmp_unordered("uno", value, value)
    kept = builder.select(is_nan, ir.Constant(i32, 0x7FC00000), rounded)
    return builder.trunc(builder.lshr(kept, ir.Constant(i32, 16)), i16)


@intrinsic
def bf16_to_f32(typingctx: Any, bits: Any) -> tuple[Any, Callable[..., Any]]:
    """Widen the uint16 bits of a bfloat16 to float32."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return _widened(builder, args[0])

    return types.float32(types.uint16), codegen


@intrinsic
def f32_to_bf16(typingctx: Any, value: Any) -> tuple[Any, Callable[..., Any]]:
    """Round a float32 to the uint16 bits of the nearest bfloat16 (ties to even, NaN kept)."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return _rounded(builder, args[0])

    return types.uint16(types.float32), codegen


@intrinsic
def widen(typingctx: Any, value: Any) -> tuple[Any, Callable[..., Any]] | None:
    """A float32 as it is, or the bits of a bfloat16 as float32: one kernel body for both."""
    if value not in (types.float32, types.uint16):
        return None

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return args[0] if value == types.float32 else _widened(builder, args[0])

    return types.float32(value), codegen


@intrinsic
def narrow(typingctx: Any, array: Any, value: Any) -> tuple[Any, Callable[..., Any]] | None:
    """A float32 as an element of ``array``: as it is, or rounded to the bits of a bfloat16."""
    element = getattr(array, "dtype", None)
    if element not in (types.float32, types.uint16):
        return None

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return args[1] if element == types.float32 else _rounded(builder, args[1])

    return element(array, types.float32), codegen


@intrinsic
def array_at(typingctx: Any, address: Any, shape: Any, kind: Any) -> tuple[Any, Callable[..., Any]]:
    """A contiguous array over memory that somebody else owns.

    Args:
        address: of its first element.
        shape: tuple of int64.
        kind: any value of the elements' type.
    """
    array = types.Array(kind, len(shape), "C")

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        made = context.make_array(array)(context, builder)
        size = context.get_abi_sizeof(context.get_data_type(kind))
        lengths = cgutils.unpack_tuple(builder, args[1])
        strides = [context.get_constant(types.intp, size)]
        for length in reversed(lengths[1:]):
            strides.insert(0, builder.mul(strides[0], length))
        populate_array(
            made,
            data=builder.inttoptr(args[0], made.data.type),
            shape=lengths,
            strides=strides,
            itemsize=context.get_constant(types.intp, size),
            meminfo=None,
        )
        return made._getvalue()

    return array(address, shape, kind), codegen


@intrinsic
def _fma(typingctx: Any, a: Any, b: Any, c: Any) -> tuple[Any, Callable[..., Any]]:
    """``a * b + c`` rounded once; unlike a plain sum it is never regrouped."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.fma(*args)

    return types.float32(types.float32, types.float32, types.float32), codegen


@intrinsic
def _power_of_two(typingctx: Any, exponent: Any) -> tuple[Any, Callable[..., Any]]:
    """``2 ** exponent`` as float32, for an int32 from -126 to 127."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        i32 = ir.IntType(32)
        biased = builder.add(args[0], ir.Constant(i32, 127))
        return builder.bitcast(builder.shl(biased, ir.Constant(i32, 23)), ir.FloatType())

    return types.float32(types.int32), codegen


_EXP_LOW = np.float32(-87.0)
_EXP_HIGH = np.float32(88.0)
_LOG2_E = np.float32(1.4426950408889634)
_LN2 = np.float32(0.6931471805599453)
_LN2_REST = np.float32(0.6931471805599453 - float(np.float32(0.6931471805599453)))
_HALF = np.float32(0.5)
# 1 / n! for n = 2 to 7; the remainder is at most ln(2) / 2, where the next term is below 1e-8.
_C2, _C3, _C4, _C5, _C6, _C7 = (
    np.float32(1 / factorial) for factorial in (2, 6, 24, 120, 720, 5040)
)


@njit(fastmath=FASTMATH, cache=True)
def exp_f32(x):  # type: ignore[no-untyped-def]
    """``exp(x)`` in float32 that LLVM can vectorise, unlike a call of libm.

    Within two units in the last place between -87 and 88; from there on 0 and infinity. NaN stays
    NaN.
    """
    inside = x if x > _EXP_LOW else _EXP_LOW
    inside = inside if inside < _EXP_HIGH else _EXP_HIGH
    scaled = inside * _LOG2_E
    whole = np.int32(scaled + (_HALF if scaled > np.float32(0) else -_HALF))
    minus = -np.float32(whole)
    rest = _fma(minus, _LN2_REST, _fma(minus, _LN2, inside))
    value = _fma(_C7, rest, _C6)
    value = _fma(value, rest, _C5)
    value = _fma(value, rest, _C4)
    value = _fma(value, rest, _C3)
    value = _fma(value, rest, _C2)
    value = _fma(value, rest * rest, rest) + np.float32(1)
    value = value * _power_of_two(whole)
    value = value if x > _EXP_LOW else np.float32(0)
    value = value if x < _EXP_HIGH else np.float32(np.inf)
    return value if x == x else x


# By the identity of a parameter: itself, its address, and its view.
_views: dict[int, tuple[weakref.ref[torch.Tensor], int, np.ndarray[Any, Any]]] = {}


def as_numpy(x: torch.Tensor) -> np.ndarray[Any, Any]:
    """A numpy view of a CPU tensor; bfloat16 comes back as its uint16 bits.

    Views of parameters are kept as long as the parameter lives, since a step asks for hundreds.
    """
    if type(x) is not torch.nn.Parameter:
        return _view(x)
    key = id(x)
    kept = _views.get(key)
    # Its data may have been replaced; the view keeps the old memory, so no address comes twice.
    if kept is not None and kept[1] == x.data_ptr() and kept[2].shape == x.shape:
        return kept[2]
    view = _view(x)
    _views[key] = weakref.ref(x, lambda _: _views.pop(key, None)), x.data_ptr(), view
    return view


def _view(x: torch.Tensor) -> np.ndarray[Any, Any]:
    plain = x.detach() if x.requires_grad else x
    return plain.view(torch.uint16).numpy() if x.dtype == torch.bfloat16 else plain.numpy()
