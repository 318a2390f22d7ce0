"""A matrix product in tiles of explicit vectors: up to four tokens times four weight rows.

LLVM's own vectoriser keeps neither sixteen sums in registers nor reads ahead, so these emit the
instructions: sums stay in registers along the whole row, and the next rows' lines are fetched
while the current ones are used, since a CPU's own prefetching ends at a page.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from llvmlite import ir
from numba import njit, types
from numba.core import cgutils
from numba.extending import intrinsic

from ascend_ops_core.cpu_numeric import FASTMATH, narrow, widen

TILE_TOKENS = 4
TILE_ROWS = 4
STEP = 16
"""Columns of one step of a tile; what a row has beyond whole steps is the caller's."""

# Tokens that all weight rows of a call meet before the next ones come, so that they stay in the
# second-level cache.
_TOKENS_IN_CACHE = 32

_F32, _I32, _I16, _I8 = ir.FloatType(), ir.IntType(32), ir.IntType(16), ir.IntType(8)


def _make(tokens: int) -> Callable[..., None]:
    """A tile ``sums[i * TILE_ROWS + j] = x[t + i] . w[n + j]`` over whole steps of the rows.

    Args:
        tokens: rows of ``x`` it takes.
    """

    @intrinsic
    def tile(typingctx: Any, x: Any, t: Any, w: Any, n: Any, sums: Any) -> Any:
        def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            # What the kernel is compiled for, which users may lower, not what the CPU has.
            wide = "+avx512f" in context.codegen().magic_tuple()[2]
            lanes = 16 if wide else 8
            at_once = TILE_ROWS if wide or tokens <= 2 else TILE_ROWS // 2
            x_array = context.make_array(signature.args[0])(context, builder, args[0])
            w_array = context.make_array(signature.args[2])(context, builder, args[2])
            target = context.make_array(signature.args[4])(context, builder, args[4]).data
            width = cgutils.unpack_tuple(builder, w_array.shape)[1]
            x_width = cgutils.unpack_tuple(builder, x_array.shape)[1]
            x_rows = _rows(builder, x_array.data, args[1], x_width, tokens)
            w_rows = _rows(builder, w_array.data, args[3], width, TILE_ROWS)
            for start in range(0, TILE_ROWS, at_once):
                rows = w_rows[start : start + at_once]
                totals = _totals(builder, x_rows, rows, width, lanes)
                for i in range(tokens):
                    for j in range(at_once):
                        place = ir.Constant(width.type, i * TILE_ROWS + start + j)
                        builder.store(totals[i * at_once + j], builder.gep(target, [place]))
            return context.get_dummy_value()

        return types.void(x, types.intp, w, types.intp, sums), codegen

    made: Callable[..., None] = tile
    return made


def _rows(builder: Any, data: Any, first: Any, width: Any, count: int) -> list[Any]:
    indices = [builder.add(first, ir.Constant(first.type, i)) for i in range(count)]
    return [builder.gep(data, [builder.mul(index, width)]) for index in indices]


def _totals(
    builder: Any, x_rows: list[Any], w_rows: list[Any], width: Any, lanes: int
) -> list[Any]:
    """Dot products of all pairs, token by token."""
    vector = ir.VectorType(_F32, lanes)
    zero = ir.Constant(vector, None)
    sums = [cgutils.alloca_once(builder, vector) for _ in range(len(x_rows) * len(w_rows))]
    for place in sums:
        builder.store(zero, place)
    steps = builder.udiv(width, ir.Constant(width.type, STEP))
    with cgutils.for_range(builder, steps) as loop:
        start = builder.mul(loop.index, ir.Constant(width.type, STEP))
        # The rows of the next tile, at the same columns.
        far = builder.add(start, builder.mul(width, ir.Constant(width.type, TILE_ROWS)))
        for row in w_rows:
            _prefetch(builder, builder.gep(row, [far]))
        for part in range(0, STEP, lanes):
            at = builder.add(start, ir.Constant(width.type, part))
            tokens = [_load(builder, row, at, lanes) for row in x_rows]
            for j, row in enumerate(w_rows):
                values = _load(builder, row, at, lanes)
                for i, token in enumerate(tokens):
                    place = sums[i * len(w_rows) + j]
                    one = builder.fmul(token, values, flags=("contract",))
                    total = builder.fadd(builder.load(place), one, flags=("contract",))
                    builder.store(total, place)
    return _reduce(builder, [builder.load(place) for place in sums], lanes)


def _load(builder: Any, row: Any, at: Any, lanes: int) -> Any:
    """Some float32, or the bits of bfloat16 as float32."""
    element = row.type.pointee
    vector = ir.VectorType(element, lanes)
    place = builder.bitcast(builder.gep(row, [at]), vector.as_pointer())
    values = builder.load(place, align=element.width // 8 if element == _I16 else 4)
    if element == _F32:
        return values
    bits = ir.VectorType(_I32, lanes)
    shifted = builder.shl(builder.zext(values, bits), ir.Constant(bits, [16] * lanes))
    return builder.bitcast(shifted, ir.VectorType(_F32, lanes))


def _prefetch(builder: Any, address: Any) -> None:
    pointer = builder.bitcast(address, _I8.as_pointer())
    kind = ir.FunctionType(ir.VoidType(), [pointer.type, _I32, _I32, _I32])
    function = cgutils.get_or_insert_function(builder.module, kind, "llvm.prefetch.p0i8")
    # Read, keep in all caches, data.
    builder.call(function, [pointer, _I32(0), _I32(3), _I32(1)])


def _reduce(builder: Any, vectors: list[Any], lanes: int) -> list[Any]:
    """Sums over the lanes of many vectors, each step halving the vectors for all at once."""
    results: list[Any] = []
    for start in range(0, len(vectors), lanes):
        group = vectors[start : start + lanes]
        count = len(group)
        size = 1 << (count - 1).bit_length()
        group += [ir.Constant(group[0].type, None)] * (size - count)
        distance = 1
        while distance < lanes:
            group = [
                _fold(builder, group[i], group[min(i + 1, len(group) - 1)], distance, lanes)
                for i in range(0, len(group), 2)
            ]
            distance *= 2
        results += [builder.extract_element(group[0], _I32(i)) for i in range(count)]
    return results


def _fold(builder: Any, a: Any, b: Any, distance: int, lanes: int) -> Any:
    """Lanes without the bit ``distance`` get a sum of ``a``'s pair, the others of ``b``'s."""
    here = [lane + (lanes if lane & distance else 0) for lane in range(lanes)]
    there = [lane ^ distance for lane in here]
    mask = ir.VectorType(_I32, lanes)
    return builder.fadd(
        builder.shuffle_vector(a, b, ir.Constant(mask, here)),
        builder.shuffle_vector(a, b, ir.Constant(mask, there)),
    )


tile_1 = _make(1)
tile_2 = _make(2)
tile_4 = _make(TILE_TOKENS)


@njit(fastmath=FASTMATH, cache=True)
def _dot(x, w):  # type: ignore[no-untyped-def]
    a = np.float32(0)
    for k in range(w.shape[0]):
        a += x[k] * widen(w[k])
    return a


@njit(fastmath=FASTMATH, cache=True)
def _finish(x, t, tokens, w, n, sums, out, r, c):  # type: ignore[no-untyped-def]
    """Add what the tile's steps left over of a row, and store the tile."""
    rest = w.shape[1] // STEP * STEP
    for i in range(tokens):
        for j in range(TILE_ROWS):
            value = sums[i * TILE_ROWS + j]
            for k in range(rest, w.shape[1]):
                value += x[t + i, k] * widen(w[n + j, k])
            out[r + i, c + j] = narrow(out, value)


@njit(fastmath=FASTMATH, cache=True)
def tiled_product(x, t0, t1, w, first, last, out, column):  # type: ignore[no-untyped-def]
    """Some weight rows times some tokens.

    ``out[t - t0, column + n - first] = x[t] . w[n]`` for ``t`` in ``[t0, t1)`` and ``n`` in
    ``[first, last)``. Every weight row is read from memory once, if the rows of a call fit into
    the second-level cache or the tokens are few.

    Args:
        x: ``[T, >= K]`` float32, contiguous.
        t0: first token.
        t1: end of the tokens.
        w: ``[N, K]`` float32 or bfloat16 bits, contiguous.
        first: first weight row.
        last: end of the weight rows.
        out: ``[>= t1 - t0, >= column + last - first]`` float32 or bfloat16 bits.
        column: where the result of row ``first`` goes.
    """
    shift = column - first
    if t1 - t0 == 1:
        # Row after row is one stream for the prefetcher, which several rows at once are not.
        for n in range(first, last):
            out[0, shift + n] = narrow(out, _dot(x[t0], w[n]))
        return
    sums = np.empty(TILE_TOKENS * TILE_ROWS, dtype=np.float32)
    for begin in range(t0, t1, _TOKENS_IN_CACHE):
        end = min(t1, begin + _TOKENS_IN_CACHE)
        n = first
        while n + TILE_ROWS <= last:
            t = begin
            while t + TILE_TOKENS <= end:
                tile_4(x, t, w, n, sums)
                _finish(x, t, TILE_TOKENS, w, n, sums, out, t - t0, shift + n)
                t += TILE_TOKENS
            if t + 2 <= end:
                tile_2(x, t, w, n, sums)
                _finish(x, t, 2, w, n, sums, out, t - t0, shift + n)
                t += 2
            if t < end:
                tile_1(x, t, w, n, sums)
                _finish(x, t, 1, w, n, sums, out, t - t0, shift + n)
            n += TILE_ROWS
        while n < last:
            for t in range(begin, end):
                out[t - t0, shift + n] = narrow(out, _dot(x[t], w[n]))
            n += 1
