"""A matrix product in tiles of explicit vectors: up to 24 pairs of tokens and weight rows.

LLVM's own vectoriser keeps neither 24 sums in registers nor reads ahead, so these emit the
instructions: sums stay in registers along the whole row and are stored as vectors, and what comes
next from memory is fetched meanwhile, line after line as it lies there, since that is the order in
which memory and a CPU's own prefetching are fastest. Where the CPU multiplies pairs of bfloat16,
tokens stay bfloat16 as well; the products are summed in float32 all the same.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np
from llvmlite import ir
from numba import njit, types
from numba.core import cgutils
from numba.core.registry import cpu_target
from numba.extending import intrinsic, overload

from ascend_ops_core.cpu_apart import apart
from ascend_ops_core.cpu_numeric import FASTMATH
from ascend_ops_core.cpu_vectors import (
    add_pairs,
    fetch,
    lane_sums,
    load_bits,
    load_floats,
    row_places,
    spread,
    store_sums,
)

TILE_TOKENS = 6
TILE_ROWS = 4

# Up to three tokens leave registers for more rows.
_WIDE_TOKENS, _WIDE_ROWS = 3, 8

_LINE_BYTES = 64
# Floats of one cache line; vectors that cross one are loaded at half the rate.
_LINE = _LINE_BYTES // 4

_F32, _I16 = ir.FloatType(), ir.IntType(16)


@functools.cache
def multiplies_bf16() -> bool:
    """Whether kernels are compiled for a CPU that multiplies pairs of bfloat16.

    What the kernels are compiled for, which users may lower, not what the CPU has.
    """
    features: str = cpu_target.target_context.codegen().magic_tuple()[2]
    return "+avx512bf16" in features.split(",")


def _make(tokens: int, alone: bool, rows: int = TILE_ROWS) -> Callable[..., None]:
    """A tile ``out[r + i, c + j] = x[places[t + i], :K] . w[n + j]``.

    Meanwhile ``share`` elements of the weight are fetched from element ``soon`` on.

    Args:
        tokens: rows of ``x`` it takes.
        alone: whether no other tile uses these weight rows. If so ``share`` is as many rows as the
            tile takes; else at most half of them, as others fetch the rest.
        rows: of the weight that it takes.
    """

    @intrinsic
    def tile(
        typingctx: Any, x: Any, places: Any, t: Any, w: Any, n: Any, soon: Any, share: Any,
        out: Any, r: Any, c: Any,
    ) -> Any:  # fmt: skip
        if x.dtype == types.uint16 and not (w.dtype == types.uint16 and multiplies_bf16()):
            return None

        def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            # What the kernel is compiled for, which users may lower, not what the CPU has.
            wide = "+avx512f" in context.codegen().magic_tuple()[2]
            lanes = 16 if wide else 8
            at_once = rows if wide else min(rows, 8 if tokens == 1 else 4 if tokens <= 3 else 2)
            passes = rows // at_once

            def array(i: int) -> Any:
                return context.make_array(signature.args[i])(context, builder, args[i])

            x_array, w_array, target = array(0), array(3), array(7)
            soon, share = args[5:7]
            width = cgutils.unpack_tuple(builder, w_array.shape)[1]
            x_width = cgutils.unpack_tuple(builder, x_array.shape)[1]
            out_width = cgutils.unpack_tuple(builder, target.shape)[1]
            first = builder.gep(array(1).data, [args[2]])
            at = [
                builder.load(builder.gep(first, [ir.Constant(width.type, i)]))
                for i in range(tokens)
            ]
            x_rows = [builder.gep(x_array.data, [builder.mul(i, x_width)]) for i in at]
            w_rows = row_places(builder, w_array.data, args[4], width, rows)
            out_rows = row_places(builder, target.data, args[8], out_width, tokens)
            fetches = at_once if alone else 2
            part = builder.udiv(share, ir.Constant(width.type, passes))
            for number in range(passes):
                start = number * at_once
                chosen = w_rows[start : start + at_once]
                shift = builder.mul(part, ir.Constant(width.type, number))
                fetched = builder.gep(w_array.data, [builder.add(soon, shift)])
                ahead = fetched, part, fetches
                totals = _totals(builder, x_rows, chosen, ahead, width, lanes)
                column = builder.add(args[9], ir.Constant(width.type, start))
                store_sums(builder, totals, out_rows, column, at_once)
            return context.get_dummy_value()

        index = types.intp
        given = x, places, index, w, index, index, index, out, index, index
        return types.void(*given), codegen

    made: Callable[..., None] = tile
    return made


def _totals(
    builder: Any,
    x_rows: list[Any],
    w_rows: list[Any],
    ahead: tuple[Any, Any, int],
    width: Any,
    lanes: int,
) -> list[Any]:
    """Vectors whose lanes are the dot products of all pairs, token by token.

    Meanwhile elements of the weight are fetched: ``ahead`` is from where on, how many, and with how
    many instructions in the time of a line of a weight row.
    """
    fetched, share, fetches = ahead
    vector = ir.VectorType(_F32, lanes)
    sums = [cgutils.alloca_once(builder, vector) for _ in range(len(x_rows) * len(w_rows))]
    for place in sums:
        builder.store(ir.Constant(vector, None), place)
    pairs = x_rows[0].type.pointee == _I16
    columns = 2 * lanes if pairs else lanes

    def size(number: int) -> Any:
        return ir.Constant(width.type, number)

    def add(at: Any, mask: Any) -> None:
        load = load_bits if pairs else load_floats
        values = [load(builder, row, at, columns, mask) for row in w_rows]
        for i, row in enumerate(x_rows):
            token = load(builder, row, at, columns, mask)
            for j, value in enumerate(values):
                place = sums[i * len(w_rows) + j]
                held = builder.load(place)
                if pairs:
                    total = add_pairs(builder, held, token, value)
                else:
                    one = builder.fmul(token, value, flags=("contract",))
                    total = builder.fadd(held, one, flags=("contract",))
                builder.store(total, place)

    # A step is a whole line of the weight.
    line = _LINE if w_rows[0].type.pointee == _F32 else 2 * _LINE
    steps = builder.udiv(width, size(line))
    whole = builder.mul(steps, size(line))
    some = builder.select(builder.icmp_unsigned("==", steps, size(0)), size(1), steps)
    distance = builder.udiv(share, builder.mul(some, size(fetches)))
    with cgutils.for_range(builder, steps) as loop:
        at = builder.mul(loop.index, builder.mul(distance, size(fetches)))
        for number in range(fetches):
            shift = builder.add(at, builder.mul(distance, size(number)))
            # A line is fetched once: every instruction costs as much as a load.
            into = builder.and_(shift, size(line - 1))
            with builder.if_then(builder.icmp_unsigned("<", into, distance)):
                fetch(builder, builder.gep(fetched, [shift]))
        start = builder.mul(loop.index, size(line))
        for part in range(0, line, columns):
            add(builder.add(start, size(part)), None)
    lane_numbers = ir.Constant(ir.VectorType(width.type, columns), list(range(columns)))
    with cgutils.for_range_slice(builder, whole, width, size(columns)) as (start, _):
        left = spread(builder, builder.sub(width, start), columns)
        add(start, builder.icmp_signed("<", lane_numbers, left))
    return lane_sums(builder, [builder.load(place) for place in sums], lanes)


_alone_1, _alone_2, _alone_3 = (
    _make(tokens, alone=True, rows=_WIDE_ROWS) for tokens in range(1, _WIDE_TOKENS + 1)
)
_alone_4, _alone_5, _alone_6 = (_make(tokens, alone=True) for tokens in range(4, TILE_TOKENS + 1))
# Tokens of several tiles are at least seven, so none of their tiles has less than three.
_shared_3, _shared_4, _shared_5, _shared_6 = (
    _make(tokens, alone=False) for tokens in range(3, TILE_TOKENS + 1)
)
_single = _make(1, alone=True, rows=1)


@njit(fastmath=FASTMATH, cache=True)
def aligned_rows(rows, width):  # type: ignore[no-untyped-def]
    """``[rows, > width]`` float32, not filled, each row at the start of a cache line.

    Rows of a power of two get another line, so that they do not share their places in a cache.
    """
    stride = (width // _LINE + 2) * _LINE
    raw = np.empty(rows * stride + _LINE, dtype=np.float32)
    skip = (-raw.ctypes.data % _LINE_BYTES) // 4
    return raw[skip : skip + rows * stride].reshape((rows, stride))


@njit(cache=True)
def _aligned_halves(rows, width):  # type: ignore[no-untyped-def]
    line = 2 * _LINE
    stride = (width // line + 2) * line
    raw = np.empty(rows * stride + line, dtype=np.uint16)
    skip = (-raw.ctypes.data % _LINE_BYTES) // 2
    return raw[skip : skip + rows * stride].reshape((rows, stride))


def token_rows(rows: int, width: int, w: Any) -> Any:
    """:func:`aligned_rows` for tokens that a weight is multiplied with; for kernels only.

    Bits of bfloat16 if the weight is bfloat16 and the CPU multiplies it, else float32.
    """
    raise NotImplementedError


@overload(token_rows)
def _token_rows(rows, width, w):  # type: ignore[no-untyped-def]
    if w.dtype == types.uint16 and multiplies_bf16():
        return lambda rows, width, w: _aligned_halves(rows, width)
    return lambda rows, width, w: aligned_rows(rows, width)


@njit(fastmath=FASTMATH, cache=True)
def tile_bound(number, tokens):  # type: ignore[no-untyped-def]
    """Where a tile starts, as the tokens come in as few tiles of about the same size as possible.

    Equals ``tokens`` for the number behind the last tile.
    """
    tiles = (tokens + TILE_TOKENS - 1) // TILE_TOKENS
    return number * tokens // tiles if tokens > 0 else 0


@njit(fastmath=FASTMATH, cache=True)
def rows_ahead(first):  # type: ignore[no-untyped-def]
    """What ``tile_product`` takes as ``ahead`` for weight rows that one tile alone uses.

    Args:
        first: first of the weight rows that are read from memory after those of the call.
    """
    return np.int64(first), np.int64(0), np.int64(0)


@njit(fastmath=FASTMATH, cache=True)
def lines_ahead(tile, tiles, w, first, rows):  # type: ignore[no-untyped-def]
    """What ``tile_product`` takes as ``ahead`` for weight rows that several tiles use.

    Args:
        tile: number of the tile, from 0. Each fetches its part of the rows that come next.
        tiles: how many, at least two.
        w: the weight.
        first: first of the weight rows that are read from memory after those of the tiles.
        rows: how many.
    """
    width = w.shape[1]
    place = first * width + tile * rows * width // tiles
    return np.int64(-1), np.int64(place), np.int64((TILE_ROWS * width + tiles - 1) // tiles)


@njit(fastmath=FASTMATH, cache=True)
def tile_product(x, places, t, count, w, first, last, ahead, out, column):  # type: ignore[no-untyped-def]
    """Some weight rows times the tokens of one tile.

    ``out[i, column + n - first] = x[places[t + i], :K] . w[n]`` for ``i < count`` and ``n`` in
    ``[first, last)``.

    Args:
        x: ``[T, >= K]`` float32, or bits of bfloat16 where :func:`multiplies_bf16` and the weight
            is bfloat16, contiguous; aligned rows are the fastest, see :func:`token_rows`.
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
    following, line, share = ahead
    width = w.shape[1]
    n = first
    c = column
    rows = _WIDE_ROWS if following >= 0 and count <= _WIDE_TOKENS else TILE_ROWS
    while n + rows <= last:
        if following >= 0:
            soon = (n + rows if n + 2 * rows <= last else following) * width
            size = rows * width
            if count == 1:
                _alone_1(x, places, t, w, n, soon, size, out, 0, c)
            elif count == 2:
                _alone_2(x, places, t, w, n, soon, size, out, 0, c)
            elif count == 3:
                _alone_3(x, places, t, w, n, soon, size, out, 0, c)
            elif count == 4:
                _alone_4(x, places, t, w, n, soon, size, out, 0, c)
            elif count == 5:
                _alone_5(x, places, t, w, n, soon, size, out, 0, c)
            else:
                _alone_6(x, places, t, w, n, soon, size, out, 0, c)
        else:
            if count == 3:
                _shared_3(x, places, t, w, n, line, share, out, 0, c)
            elif count == 4:
                _shared_4(x, places, t, w, n, line, share, out, 0, c)
            elif count == 5:
                _shared_5(x, places, t, w, n, line, share, out, 0, c)
            else:
                _shared_6(x, places, t, w, n, line, share, out, 0, c)
            line += share
        n += rows
        c += rows
    while n < last:
        for i in range(count):
            _single(x, places, t + i, w, n, n * width, width, out, i, c)
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
    tiles = (tokens + TILE_TOKENS - 1) // TILE_TOKENS
    tile = 0
    t = 0
    while t < tokens:
        after = tile_bound(tile + 1, tokens)
        later = lines_ahead(tile, tiles, w, first, last - first)
        ahead = rows_ahead(first) if tile == 0 else later
        _tile_product(x, places, t, after - t, w, first, last, ahead, out[t:after], column)
        t = after
        tile += 1
