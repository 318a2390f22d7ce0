"""A matrix product in tiles of explicit vectors: up to 24 pairs of tokens and weight rows.

LLVM's own vectoriser keeps neither 24 sums in registers nor reads ahead, so these emit the
instructions: sums stay in registers along the whole row and are stored as vectors, and the lines
of the weight rows that come next are fetched while the current ones are used, since a CPU's own
prefetching ends at a page.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from llvmlite import ir
from numba import njit, types
from numba.core import cgutils
from numba.extending import intrinsic

from ascend_ops_core.cpu_apart import apart
from ascend_ops_core.cpu_numeric import FASTMATH

TILE_TOKENS = 6
TILE_ROWS = 4

# Up to three tokens leave registers for more rows, each of which is a stream from memory.
_WIDE_TOKENS, _WIDE_ROWS = 3, 8

# Floats of one cache line; vectors that cross one are loaded at half the rate.
_LINE = 16
# Columns in whose time a later tile fetches one line. More at once would wait for each other, and
# the tile for them.
_COLUMNS_PER_LINE = 32

# Where LLVM's prefetch puts a line.
_ALL_CACHES, _SECOND_LEVEL = 3, 2

_F32, _I32, _I16, _I8 = ir.FloatType(), ir.IntType(32), ir.IntType(16), ir.IntType(8)


def _make(tokens: int, ahead: bool, rows: int = TILE_ROWS) -> Callable[..., None]:
    """A tile ``out[r + i, c + j] = x[places[t + i], :K] . w[n + j]``.

    Args:
        tokens: rows of ``x`` it takes.
        ahead: whether weights come from memory. If so ``soon`` is the first of the weight rows of
            the next tile, which are all fetched; else an element of the weight from which on lines
            are fetched in passing, for a later call.
        rows: of the weight that it takes.
    """

    @intrinsic
    def tile(
        typingctx: Any, x: Any, places: Any, t: Any, w: Any, n: Any, soon: Any,
        out: Any, r: Any, c: Any,
    ) -> Any:  # fmt: skip
        def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            # What the kernel is compiled for, which users may lower, not what the CPU has.
            wide = "+avx512f" in context.codegen().magic_tuple()[2]
            lanes = 16 if wide else 8
            at_once = rows if wide else min(rows, 8 if tokens == 1 else 4 if tokens <= 3 else 2)

            def array(i: int) -> Any:
                return context.make_array(signature.args[i])(context, builder, args[i])

            x_array, w_array, target = array(0), array(3), array(6)
            width = cgutils.unpack_tuple(builder, w_array.shape)[1]
            x_width = cgutils.unpack_tuple(builder, x_array.shape)[1]
            out_width = cgutils.unpack_tuple(builder, target.shape)[1]
            first = builder.gep(array(1).data, [args[2]])
            at = [
                builder.load(builder.gep(first, [ir.Constant(width.type, i)]))
                for i in range(tokens)
            ]
            x_rows = [builder.gep(x_array.data, [builder.mul(i, x_width)]) for i in at]
            w_rows = _rows(builder, w_array.data, args[4], width, rows)
            if ahead:
                fetched = _rows(builder, w_array.data, args[5], width, rows)
            else:
                fetched = [builder.gep(w_array.data, [args[5]])]
            out_rows = _rows(builder, target.data, args[7], out_width, tokens)
            for start in range(0, rows, at_once):
                chosen = w_rows[start : start + at_once]
                part = fetched[start : start + at_once]
                totals = _totals(builder, x_rows, chosen, part, width, lanes, ahead)
                column = builder.add(args[8], ir.Constant(width.type, start))
                _store(builder, totals, out_rows, column, at_once)
            return context.get_dummy_value()

        index = types.intp
        given = x, places, index, w, index, index, out, index, index
        return types.void(*given), codegen

    made: Callable[..., None] = tile
    return made


def _rows(builder: Any, data: Any, first: Any, width: Any, count: int) -> list[Any]:
    indices = [builder.add(first, ir.Constant(first.type, i)) for i in range(count)]
    return [builder.gep(data, [builder.mul(index, width)]) for index in indices]


def _totals(
    builder: Any,
    x_rows: list[Any],
    w_rows: list[Any],
    fetched: list[Any],
    width: Any,
    lanes: int,
    ahead: bool,
) -> list[Any]:
    """Vectors whose lanes are the dot products of all pairs, token by token.

    Meanwhile the rows ``fetched`` are fetched, or a line in a while from a place on.
    """
    vector = ir.VectorType(_F32, lanes)
    sums = [cgutils.alloca_once(builder, vector) for _ in range(len(x_rows) * len(w_rows))]
    for place in sums:
        builder.store(ir.Constant(vector, None), place)

    def size(number: int) -> Any:
        return ir.Constant(width.type, number)

    def add(at: Any, mask: Any) -> None:
        values = [_load(builder, row, at, lanes, mask) for row in w_rows]
        for i, row in enumerate(x_rows):
            token = _load(builder, row, at, lanes, mask)
            for j, value in enumerate(values):
                place = sums[i * len(w_rows) + j]
                one = builder.fmul(token, value, flags=("contract",))
                builder.store(builder.fadd(builder.load(place), one, flags=("contract",)), place)

    # A step is a whole line of the weight, which is fetched once.
    line = _LINE if w_rows[0].type.pointee == _F32 else 2 * _LINE
    step = line if ahead else _COLUMNS_PER_LINE
    whole = builder.mul(builder.udiv(width, size(step)), size(step))
    with cgutils.for_range_slice(builder, size(0), whole, size(step)) as (start, _):
        for row in fetched:
            at = start if ahead else builder.udiv(start, size(_COLUMNS_PER_LINE // line))
            _prefetch(builder, builder.gep(row, [at]), _ALL_CACHES if ahead else _SECOND_LEVEL)
        for part in range(0, step, lanes):
            add(builder.add(start, size(part)), None)
    lane_numbers = ir.Constant(ir.VectorType(width.type, lanes), list(range(lanes)))
    with cgutils.for_range_slice(builder, whole, width, size(lanes)) as (start, _):
        left = _spread(builder, builder.sub(width, start), lanes)
        add(start, builder.icmp_signed("<", lane_numbers, left))
    return _reduce(builder, [builder.load(place) for place in sums], lanes)


def _spread(builder: Any, value: Any, lanes: int) -> Any:
    kind = ir.VectorType(value.type, lanes)
    one = builder.insert_element(ir.Constant(kind, ir.Undefined), value, _I32(0))
    zeros = ir.Constant(ir.VectorType(_I32, lanes), [0] * lanes)
    return builder.shuffle_vector(one, ir.Constant(kind, ir.Undefined), zeros)


def _load(builder: Any, row: Any, at: Any, lanes: int, mask: Any) -> Any:
    """Some float32, or the bits of bfloat16 as float32; 0 where a mask excludes a lane."""
    element = row.type.pointee
    vector = ir.VectorType(element, lanes)
    place = builder.bitcast(builder.gep(row, [at]), vector.as_pointer())
    size = 2 if element == _I16 else 4
    if mask is None:
        values = builder.load(place, align=size)
    else:
        kind = ir.FunctionType(vector, [place.type, _I32, mask.type, vector])
        name = f"v{lanes}{'i16' if element == _I16 else 'f32'}"
        function = cgutils.get_or_insert_function(
            builder.module, kind, f"llvm.masked.load.{name}.p0{name}"
        )
        values = builder.call(function, [place, _I32(size), mask, ir.Constant(vector, None)])
    if element == _F32:
        return values
    bits = ir.VectorType(_I32, lanes)
    shifted = builder.shl(builder.zext(values, bits), ir.Constant(bits, [16] * lanes))
    return builder.bitcast(shifted, ir.VectorType(_F32, lanes))


def _prefetch(builder: Any, address: Any, locality: int) -> None:
    pointer = builder.bitcast(address, _I8.as_pointer())
    kind = ir.FunctionType(ir.VoidType(), [pointer.type, _I32, _I32, _I32])
    function = cgutils.get_or_insert_function(builder.module, kind, "llvm.prefetch.p0i8")
    # Read, where to, data.
    builder.call(function, [pointer, _I32(0), _I32(locality), _I32(1)])


def _reduce(builder: Any, vectors: list[Any], lanes: int) -> list[Any]:
    """Sums over the lanes of many vectors, each step halving the vectors for all at once."""
    results: list[Any] = []
    for start in range(0, len(vectors), lanes):
        group = vectors[start : start + lanes]
        size = 1 << (len(group) - 1).bit_length()
        group += [ir.Constant(group[0].type, None)] * (size - len(group))
        distance = 1
        while distance < lanes:
            group = [
                _fold(builder, group[i], group[min(i + 1, len(group) - 1)], distance, lanes)
                for i in range(0, len(group), 2)
            ]
            distance *= 2
        results.append(group[0])
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


def _store(builder: Any, totals: list[Any], out_rows: list[Any], column: Any, rows: int) -> None:
    """Store the lanes of the totals, ``rows`` of them for each token."""
    lanes = totals[0].type.count
    for i, row in enumerate(out_rows):
        vector, lane = totals[i * rows // lanes], i * rows % lanes
        chosen = ir.Constant(ir.VectorType(_I32, rows), list(range(lane, lane + rows)))
        part = builder.shuffle_vector(vector, vector, chosen)
        place = builder.bitcast(builder.gep(row, [column]), part.type.as_pointer())
        builder.store(part, place, align=4)


_first_1, _first_2, _first_3 = (
    _make(tokens, ahead=True, rows=_WIDE_ROWS) for tokens in range(1, _WIDE_TOKENS + 1)
)
_first_4, _first_5, _first_6 = (_make(tokens, ahead=True) for tokens in range(4, TILE_TOKENS + 1))
# Tokens of several tiles are at least seven, so none of their tiles has less than three.
_later_3, _later_4, _later_5, _later_6 = (
    _make(tokens, ahead=False) for tokens in range(3, TILE_TOKENS + 1)
)
_single = _make(1, ahead=True, rows=1)


@njit(fastmath=FASTMATH, cache=True)
def aligned_rows(rows, width):  # type: ignore[no-untyped-def]
    """``[rows, > width]`` float32, not filled, each row at the start of a cache line.

    Rows of a power of two get another line, so that they do not share their places in a cache.
    """
    stride = (width // _LINE + 2) * _LINE
    raw = np.empty(rows * stride + _LINE, dtype=np.float32)
    skip = (-raw.ctypes.data % (4 * _LINE)) // 4
    return raw[skip : skip + rows * stride].reshape((rows, stride))


@njit(fastmath=FASTMATH, cache=True)
def tile_bound(number, tokens):  # type: ignore[no-untyped-def]
    """Where a tile starts, as the tokens come in as few tiles of about the same size as possible.

    Equals ``tokens`` for the number behind the last tile.
    """
    tiles = (tokens + TILE_TOKENS - 1) // TILE_TOKENS
    return number * tokens // tiles if tokens > 0 else 0


@njit(fastmath=FASTMATH, cache=True)
def rows_ahead(first):  # type: ignore[no-untyped-def]
    """What ``tile_product`` takes as ``ahead`` where its weight rows come from memory.

    Args:
        first: first of the weight rows that are read from memory after those of the call.
    """
    return np.int64(first), np.int64(0), np.int64(0)


@njit(fastmath=FASTMATH, cache=True)
def lines_ahead(tile, w, first, rows):  # type: ignore[no-untyped-def]
    """What ``tile_product`` takes as ``ahead`` where its weight rows are in a cache.

    Args:
        tile: number of the tile of tokens, from 1, as tile 0 took the rows from memory. Each
            fetches its part of the rows that come next.
        w: the weight.
        first: first of the weight rows that are read from memory after those of the call.
        rows: how many.
    """
    width = w.shape[1]
    begin = first * width + (tile - 1) * (rows // TILE_ROWS) * _fetched(w)
    last = (first + rows) * width - _fetched(w)
    return np.int64(-1), min(begin, last), last


@njit(cache=True)
def _fetched(w):  # type: ignore[no-untyped-def]
    """Elements of the lines that a tile fetches."""
    return w.shape[1] // _COLUMNS_PER_LINE * (4 * _LINE // w.itemsize)


@njit(fastmath=FASTMATH, cache=True)
def tile_product(x, places, t, count, w, first, last, ahead, out, column):  # type: ignore[no-untyped-def]
    """Some weight rows times the tokens of one tile.

    ``out[i, column + n - first] = x[places[t + i], :K] . w[n]`` for ``i < count`` and ``n`` in
    ``[first, last)``.

    Args:
        x: ``[T, >= K]`` float32, contiguous; aligned rows are the fastest.
        places: ``[P]`` int64, rows of ``x``.
        t: first place.
        count: tokens, see :func:`tile_bound`.
        w: ``[N, K]`` float32 or bfloat16 bits, contiguous.
        first: first weight row.
        last: end of the weight rows.
        ahead: what to fetch meanwhile, from :func:`rows_ahead`, or from :func:`lines_ahead` for
            tiles of three tokens and more.
        out: ``[>= count, >= column + last - first]`` float32, contiguous.
        column: where the result of row ``first`` goes.
    """
    following, line, last_line = ahead
    n = first
    c = column
    rows = _WIDE_ROWS if following >= 0 and count <= _WIDE_TOKENS else TILE_ROWS
    while n + rows <= last:
        if following >= 0:
            after = n + rows if n + 2 * rows <= last else following
            if count == 1:
                _first_1(x, places, t, w, n, after, out, 0, c)
            elif count == 2:
                _first_2(x, places, t, w, n, after, out, 0, c)
            elif count == 3:
                _first_3(x, places, t, w, n, after, out, 0, c)
            elif count == 4:
                _first_4(x, places, t, w, n, after, out, 0, c)
            elif count == 5:
                _first_5(x, places, t, w, n, after, out, 0, c)
            else:
                _first_6(x, places, t, w, n, after, out, 0, c)
        else:
            if count == 3:
                _later_3(x, places, t, w, n, line, out, 0, c)
            elif count == 4:
                _later_4(x, places, t, w, n, line, out, 0, c)
            elif count == 5:
                _later_5(x, places, t, w, n, line, out, 0, c)
            else:
                _later_6(x, places, t, w, n, line, out, 0, c)
            line = min(line + _fetched(w), last_line)
        n += rows
        c += rows
    while n < last:
        for i in range(count):
            _single(x, places, t + i, w, n, n, out, i, c)
        n += 1
        c += 1


_tile_product = apart(tile_product)


@njit(fastmath=FASTMATH, cache=True)
def tiled_product(x, t0, t1, w, first, last, out, column):  # type: ignore[no-untyped-def]
    """``out[t - t0, column + n - first] = x[t, :K] . w[n]`` for ``t`` in ``[t0, t1)``.

    For the rest see :func:`tile_product`. Every weight row is read from memory once, if the rows of
    a call fit into the second-level cache or the tokens are few.
    """
    places = np.arange(t0, t1)
    tokens = t1 - t0
    tile = 0
    t = 0
    while t < tokens:
        after = tile_bound(tile + 1, tokens)
        ahead = rows_ahead(first) if t == 0 else lines_ahead(tile, w, first, last - first)
        _tile_product(x, places, t, after - t, w, first, last, ahead, out[t:after], column)
        t = after
        tile += 1
