"""A matrix product for many tokens: weights as panels of a few rows, tokens as tiles, both packed.

Column after column a tile's values are multiplied with the vectors of a panel, so every lane is a
sum of its own, and nothing is added across lanes in the end. Packing a panel turns bfloat16 into
float32 and costs less than a tenth of its product with a hundred tokens.
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
from ascend_ops_core.cpu_numeric import FASTMATH, widen
from ascend_ops_core.cpu_stream import load_wide

# Vectors of a panel; with a tile's tokens they fill the registers with sums.
_VECTORS = 2
_TOKENS = {16: 12, 8: 6}
# A model has 8 heads or a multiple, of which a larger tile would leave rests.
_HEADS = {16: 8, 8: 4}
# Columns in whose time a line is fetched.
_COLUMNS_PER_LINE = 4
_LINE_BYTES = 64
_SECOND_LEVEL = 2

_F32, _I32, _I8 = ir.FloatType(), ir.IntType(32), ir.IntType(8)


def lanes_of(context: Any) -> int:
    """Floats of a vector, while a kernel is compiled."""
    # What the kernel is compiled for, which users may lower, not what the CPU has.
    return 16 if "+avx512f" in context.codegen().magic_tuple()[2] else 8


@intrinsic
def panel_rows(typingctx: Any) -> Any:
    """Weight rows of a panel."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return context.get_constant(types.int64, _VECTORS * lanes_of(context))

    return types.int64(), codegen


@intrinsic
def panel_tokens(typingctx: Any) -> Any:
    """Tokens of a tile."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return context.get_constant(types.int64, _TOKENS[lanes_of(context)])

    return types.int64(), codegen


@intrinsic
def panel_heads(typingctx: Any) -> Any:
    """Heads of a tile."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return context.get_constant(types.int64, _HEADS[lanes_of(context)])

    return types.int64(), codegen


@intrinsic
def lane_count(typingctx: Any) -> Any:
    """Floats of a vector."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return context.get_constant(types.int64, lanes_of(context))

    return types.int64(), codegen


@intrinsic
def _transpose(
    typingctx: Any, rows: Any, places: Any, first: Any, last: Any, column: Any, out: Any,
    start: Any, stride: Any,
) -> Any:  # fmt: skip
    """Some columns of some rows, one vector of rows for each column.

    ``out[start + c * stride + i] = rows[places[min(first + i, last)], column + c]`` for as many
    ``i`` and ``c`` as a vector has lanes, ``c`` ascending.
    """

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        lanes = lanes_of(context)
        source = context.make_array(signature.args[0])(context, builder, args[0])
        numbers = context.make_array(signature.args[1])(context, builder, args[1]).data
        target = context.make_array(signature.args[5])(context, builder, args[5]).data
        width = cgutils.unpack_tuple(builder, source.shape)[1]
        index = width.type
        vectors = []
        for i in range(lanes):
            place = builder.add(args[2], ir.Constant(index, i))
            inside = builder.icmp_signed("<", place, args[3])
            place = builder.select(inside, place, args[3])
            number = builder.load(builder.gep(numbers, [place]))
            row = builder.gep(source.data, [builder.mul(number, width)])
            vectors.append(load_wide(builder, row, args[4], lanes))
        mask = ir.VectorType(_I32, lanes)
        distance = 1
        while distance < lanes:
            for i in range(lanes):
                if not i & distance:
                    a, b = vectors[i], vectors[i + distance]
                    low = [
                        lane if not lane & distance else lanes + lane - distance
                        for lane in range(lanes)
                    ]
                    high = [
                        lane + distance if not lane & distance else lanes + lane
                        for lane in range(lanes)
                    ]
                    vectors[i] = builder.shuffle_vector(a, b, ir.Constant(mask, low))
                    vectors[i + distance] = builder.shuffle_vector(a, b, ir.Constant(mask, high))
            distance *= 2
        for i, vector in enumerate(vectors):
            at = builder.add(args[6], builder.mul(args[7], ir.Constant(index, i)))
            place = builder.bitcast(builder.gep(target, [at]), vector.type.as_pointer())
            builder.store(vector, place, align=4)
        return context.get_dummy_value()

    number = types.int64
    return types.void(rows, places, number, number, number, out, number, number), codegen


def _make(tokens_of: dict[int, int], fetches: bool) -> Callable[..., None]:
    """A product of one tile and one panel, for so many tokens by the lanes of a vector."""

    @intrinsic
    def add(
        typingctx: Any, tiles: Any, tile: Any, panel: Any, begin: Any, stride: Any, columns: Any,
        out: Any, at: Any, weight: Any, soon: Any,
    ) -> Any:  # fmt: skip
        def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            lanes = lanes_of(context)
            tokens = tokens_of[lanes]

            def pointer(array: int, first: int) -> Any:
                data = context.make_array(signature.args[array])(context, builder, args[array]).data
                return builder.gep(data, [args[first]])

            x, w, target = pointer(0, 1), pointer(2, 3), pointer(6, 7)
            fetched = builder.bitcast(pointer(8, 9), _I8.as_pointer())
            vector = ir.VectorType(_F32, lanes)
            index = args[5].type

            def size(number: int) -> Any:
                return ir.Constant(index, number)

            def place(first: Any, shift: Any) -> Any:
                return builder.bitcast(builder.gep(first, [shift]), vector.as_pointer())

            sums = [cgutils.alloca_once(builder, vector) for _ in range(tokens * _VECTORS)]
            for i, one in enumerate(sums):
                builder.store(builder.load(place(target, size(i * lanes)), align=4), one)
            zeros = ir.Constant(ir.VectorType(_I32, lanes), [0] * lanes)
            undefined = ir.Constant(vector, ir.Undefined)

            def column(number: Any) -> None:
                first = builder.mul(number, args[4])
                values = [
                    builder.load(place(w, builder.add(first, size(j * lanes))), align=4)
                    for j in range(_VECTORS)
                ]
                token = builder.mul(number, size(tokens))
                for i in range(tokens):
                    scalar = builder.load(builder.gep(x, [builder.add(token, size(i))]))
                    one = builder.insert_element(undefined, scalar, _I32(0))
                    spread = builder.shuffle_vector(one, undefined, zeros)
                    for j, value in enumerate(values):
                        held = sums[i * _VECTORS + j]
                        product = builder.fmul(spread, value, flags=("contract",))
                        total = builder.fadd(builder.load(held), product, flags=("contract",))
                        builder.store(total, held)

            step = size(_COLUMNS_PER_LINE)
            whole = builder.mul(builder.udiv(args[5], step), step)
            with cgutils.for_range_slice(builder, size(0), whole, step) as (start, _):
                if fetches:
                    line = builder.mul(start, size(_LINE_BYTES // _COLUMNS_PER_LINE))
                    _prefetch(builder, builder.gep(fetched, [line]))
                for part in range(_COLUMNS_PER_LINE):
                    column(builder.add(start, size(part)))
            with cgutils.for_range_slice(builder, whole, args[5], size(1)) as (start, _):
                column(start)
            for i, one in enumerate(sums):
                builder.store(builder.load(one), place(target, size(i * lanes)), align=4)
            return context.get_dummy_value()

        number = types.int64
        given = tiles, number, panel, number, number, number, out, number, weight, number
        return types.void(*given), codegen

    made: Callable[..., None] = add
    return made


_add_tokens = _make(_TOKENS, fetches=True)
_add_heads = _make(_HEADS, fetches=False)


def _prefetch(builder: Any, address: Any) -> None:
    kind = ir.FunctionType(ir.VoidType(), [address.type, _I32, _I32, _I32])
    function = cgutils.get_or_insert_function(builder.module, kind, "llvm.prefetch.p0i8")
    # Read, where to, data.
    builder.call(function, [address, _I32(0), _I32(_SECOND_LEVEL), _I32(1)])


@njit(cache=True)
def packed_floats(count):  # type: ignore[no-untyped-def]
    """``[count]`` float32, not filled, from the start of a cache line on."""
    raw = np.empty(count + 16, dtype=np.float32)
    skip = (-raw.ctypes.data % 64) // 4
    return raw[skip : skip + count]


@njit(fastmath=FASTMATH, cache=True)
def _pack(rows, places, first, last, begin, end, held, out, start):  # type: ignore[no-untyped-def]
    """Pack columns of up to a vector of rows, ``first`` to ``last`` of ``places``."""
    lanes = lane_count()
    k = begin
    # A vector of more than the tile's tokens ends in the next column, which is written later.
    columns = lanes if held >= lanes else lanes + 1
    while k + columns <= end:
        _transpose(rows, places, first, last, k, out, start, held)
        start += lanes * held
        k += lanes
    while k < end:
        for i in range(min(lanes, held)):
            out[start + i] = widen(rows[places[min(first + i, last)], k])
        start += held
        k += 1


@njit(fastmath=FASTMATH, cache=True)
def _pack_tile(x, places, first, count, held, out, start):  # type: ignore[no-untyped-def]
    """Pack ``x[places[first : first + count]]`` as a tile, whose other tokens repeat the last one.

    Args:
        x: ``[T, K]`` float32 or bfloat16 bits, contiguous.
        places: ``[P]`` int64.
        first: first place.
        count: places, from 1 to ``held``.
        held: tokens of the tile, :func:`panel_tokens` or :func:`panel_heads`.
        out: from :func:`packed_floats`.
        start: where the tile's ``K * held`` values go.
    """
    _pack(x, places, first, first + count - 1, 0, x.shape[1], held, out, start)


pack_tile = apart(_pack_tile)


@njit(fastmath=FASTMATH, cache=True)
def _pack_panel(w, first, count, begin, end, numbers, out):  # type: ignore[no-untyped-def]
    """Pack ``w[first : first + count, begin : end]`` as a panel, whose other rows repeat the last.

    Args:
        w: ``[N, K]`` float32 or bfloat16 bits, contiguous.
        first: first weight row.
        count: rows, from 1 to :func:`panel_rows`.
        begin: first column.
        end: end of the columns.
        numbers: ``[>= panel_rows()]`` int64, overwritten.
        out: from :func:`packed_floats`, for the columns times :func:`panel_rows`.
    """
    held = panel_rows()
    for i in range(held):
        numbers[i] = first + min(i, count - 1)
    for offset in range(0, held, lane_count()):
        _pack(w, numbers, offset, held - 1, begin, end, held, out, offset)


pack_panel = apart(_pack_panel)


@njit(cache=True)
def fetched_ahead(tile, w, row, rows):  # type: ignore[no-untyped-def]
    """First element of ``w [N, K]`` that the product of a tile fetches.

    Args:
        tile: number of the tile, each of which fetches a part of what comes next.
        w: the weight.
        row: first of the rows that come next.
        rows: how many.
    """
    width = w.shape[1]
    each = width // _COLUMNS_PER_LINE * (_LINE_BYTES // w.itemsize)
    return max(row * width, min(row * width + tile * each, (row + rows) * width - each))


@njit(fastmath=FASTMATH, cache=True)
def _add_product(tiles, tile, panel, columns, out, at, w, soon):  # type: ignore[no-untyped-def]
    """Add a tile times a panel to ``out[at:]``, where the rows of a token lie together.

    Args:
        tiles: packed tiles of :func:`panel_tokens` tokens.
        tile: where the tile's first column lies.
        panel: the packed panel, from its first column on.
        columns: how many.
        out: ``[>= at + panel_tokens() * panel_rows()]`` float32.
        at: where the result goes.
        w: a weight of which lines are fetched meanwhile.
        soon: the first element of them, see :func:`fetched_ahead`.
    """
    _add_tokens(tiles, tile, panel, 0, panel_rows(), columns, out, at, w, soon)


add_product = apart(_add_product)


@njit(fastmath=FASTMATH, cache=True)
def _add_to_heads(tiles, tile, panel, begin, stride, columns, out, at):  # type: ignore[no-untyped-def]
    """Add a tile of :func:`panel_heads` heads times a panel to ``out[at:]``.

    Args:
        tiles: packed tiles.
        tile: where the tile's first column lies.
        panel: flat float32, a packed panel or any rows of which some values are taken.
        begin: first value of the first column.
        stride: values from one column to the next.
        columns: how many.
        out: ``[>= at + panel_heads() * panel_rows()]`` float32.
        at: where the result goes.
    """
    _add_heads(tiles, tile, panel, begin, stride, columns, out, at, panel, begin)


add_heads = apart(_add_to_heads)
