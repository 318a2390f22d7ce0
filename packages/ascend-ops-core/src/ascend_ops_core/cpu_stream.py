"""The dot product of a decode step: one token with weight rows that come from memory once.

Such a product is as fast as memory is read. The prefetcher of a CPU keeps too few lines in flight
for that and stops at the end of a page, so the lines that follow are asked for here, some
thousand bytes ahead, beyond the row's end in the rows behind it.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import njit, types
from numba.core import cgutils
from numba.extending import intrinsic

from ascend_ops_core.cpu_numeric import FASTMATH, widen

STEP = 64
"""Columns of one step; what a row has beyond whole steps is added one by one."""

# Measured on Ice Lake: from two to eight kilobytes make no difference, less is slower.
_BYTES_AHEAD = 4096
_LINE_BYTES = 64

_F32, _I32, _I16, _I8 = ir.FloatType(), ir.IntType(32), ir.IntType(16), ir.IntType(8)


@intrinsic
def _whole_steps(typingctx: Any, x: Any, w: Any) -> Any:
    """Sum of ``x[k] * w[k]`` over all whole steps of the contiguous row ``w``."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        # What the kernel is compiled for, which users may lower, not what the CPU has.
        lanes = 16 if "+avx512f" in context.codegen().magic_tuple()[2] else 8
        x_array = context.make_array(signature.args[0])(context, builder, args[0])
        w_array = context.make_array(signature.args[1])(context, builder, args[1])
        (width,) = cgutils.unpack_tuple(builder, w_array.shape)
        values = w_array.data
        element_bytes = values.type.pointee.width // 8 if values.type.pointee != _F32 else 4
        vector = ir.VectorType(_F32, lanes)
        sums = [cgutils.alloca_once(builder, vector) for _ in range(STEP // lanes)]
        for place in sums:
            builder.store(ir.Constant(vector, None), place)
        steps = builder.udiv(width, ir.Constant(width.type, STEP))
        with cgutils.for_range(builder, steps) as loop:
            start = builder.mul(loop.index, ir.Constant(width.type, STEP))
            for line in range(STEP * element_bytes // _LINE_BYTES):
                ahead = (_BYTES_AHEAD + line * _LINE_BYTES) // element_bytes
                far = builder.add(start, ir.Constant(width.type, ahead))
                prefetch(builder, builder.gep(values, [far]))
            for part, place in enumerate(sums):
                at = builder.add(start, ir.Constant(width.type, part * lanes))
                token = load_wide(builder, x_array.data, at, lanes)
                weight = load_wide(builder, values, at, lanes)
                one = builder.fmul(token, weight, flags=("contract",))
                builder.store(builder.fadd(builder.load(place), one, flags=("contract",)), place)
        return _sum(builder, [builder.load(place) for place in sums], lanes)

    return types.float32(x, w), codegen


def load_wide(builder: Any, row: Any, at: Any, lanes: int) -> Any:
    """Some float32, or the bits of bfloat16 as float32."""
    element = row.type.pointee
    vector = ir.VectorType(element, lanes)
    place = builder.bitcast(builder.gep(row, [at]), vector.as_pointer())
    if element == _F32:
        return builder.load(place, align=4)
    bits = ir.VectorType(_I32, lanes)
    wide = builder.zext(builder.load(place, align=2), bits)
    shifted = builder.shl(wide, ir.Constant(bits, [16] * lanes))
    return builder.bitcast(shifted, ir.VectorType(_F32, lanes))


def prefetch(builder: Any, address: Any) -> None:
    """Ask for a line that will be read; an address outside the memory does nothing."""
    pointer = builder.bitcast(address, _I8.as_pointer())
    kind = ir.FunctionType(ir.VoidType(), [pointer.type, _I32, _I32, _I32])
    function = cgutils.get_or_insert_function(builder.module, kind, "llvm.prefetch.p0i8")
    # Read, keep in all caches, data.
    builder.call(function, [pointer, _I32(0), _I32(3), _I32(1)])


def _sum(builder: Any, vectors: list[Any], lanes: int) -> Any:
    """Sum over the lanes of some vectors."""
    while len(vectors) > 1:
        half = len(vectors) // 2
        vectors = [builder.fadd(vectors[i], vectors[half + i]) for i in range(half)]
    total = vectors[0]
    mask = ir.VectorType(_I32, lanes)
    distance = lanes // 2
    while distance:
        order = [lane ^ distance for lane in range(lanes)]
        total = builder.fadd(total, builder.shuffle_vector(total, total, ir.Constant(mask, order)))
        distance //= 2
    return builder.extract_element(total, _I32(0))


@njit(fastmath=FASTMATH, cache=True)
def streamed_dot(x, w):  # type: ignore[no-untyped-def]
    """``x . w`` as float32.

    Args:
        x: ``[K]`` float32, contiguous.
        w: ``[K]`` float32 or bfloat16 bits, contiguous, a row of a larger matrix.
    """
    total = _whole_steps(x, w)
    for k in range(w.shape[0] // STEP * STEP, w.shape[0]):
        total += x[k] * widen(w[k])
    return total
