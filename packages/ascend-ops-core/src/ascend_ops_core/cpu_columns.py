"""A matrix product for many tokens that takes the weight as it lies and packs the tokens.

A panel holds some tokens, column after column, in vectors whose lanes are tokens. Column after
column they are multiplied with a value of each of some weight rows, so every lane is a sum of its
own: nothing is added across lanes in the end, and no weight is packed. Tokens are counted in units
of eight, of which two fill a vector of sixteen lanes, so it takes some of them to be worth it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from llvmlite import ir
from numba import njit, types
from numba.core import cgutils
from numba.extending import intrinsic

from ascend_ops_core.cpu_apart import apart
from ascend_ops_core.cpu_numeric import FASTMATH
from ascend_ops_core.cpu_panels import lane_count, lanes_of, pack_tile, packed_floats
from ascend_ops_core.cpu_vectors import fetch, spread

UNIT = 8
"""Tokens that are counted together."""

COLUMN_ROWS = 6
"""Weight rows of one product; with the vectors of a panel they fill the registers with sums."""

# Units of the largest panel, by the lanes of a vector.
_MOST_UNITS = {16: 8, 8: 2}
# Columns in whose time lines are fetched: one line of every weight row.
_LINE = 16
_UNROLLED = 4

_F32 = ir.FloatType()


@intrinsic
def most_units(typingctx: Any) -> Any:
    """Units of the largest panel."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return context.get_constant(types.int64, _MOST_UNITS[lanes_of(context)])

    return types.int64(), codegen


def _make(units: int) -> Callable[..., None]:
    """``out[at + i * S + l] = sum_k panels[begin + k * S + l] * w[min(n + i, last - 1), k]``.

    ``S`` is the tokens of so many units. In the time of a line of each weight row some lines of
    the weight are fetched, from element ``soon`` on.
    """

    @intrinsic
    def product(
        typingctx: Any, panels: Any, begin: Any, w: Any, n: Any, last: Any, soon: Any, lines: Any,
        out: Any, at: Any,
    ) -> Any:  # fmt: skip
        def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            if units > _MOST_UNITS[lanes_of(context)]:
                # Where vectors are shorter nobody asks for it.
                return context.get_dummy_value()
            at_once = lanes_of(context) // UNIT
            lengths = [at_once * UNIT] * (units // at_once) + [UNIT] * (units % at_once)

            def array(i: int) -> Any:
                return context.make_array(signature.args[i])(context, builder, args[i])

            weight = array(2)
            width = cgutils.unpack_tuple(builder, weight.shape)[1]

            def size(number: int) -> Any:
                return ir.Constant(width.type, number)

            def places(first: Any) -> list[Any]:
                """Where the vectors of a row of tokens lie."""
                found, shift = [], 0
                for length in lengths:
                    place = builder.gep(first, [size(shift)])
                    kind = ir.VectorType(_F32, length).as_pointer()
                    found.append(builder.bitcast(place, kind))
                    shift += length
                return found

            end = builder.sub(args[4], size(1))
            rows = []
            for i in range(COLUMN_ROWS):
                row = builder.add(args[3], size(i))
                row = builder.select(builder.icmp_signed("<", row, end), row, end)
                rows.append(builder.gep(weight.data, [builder.mul(row, width)]))
            fetched = builder.gep(weight.data, [args[5]])
            tokens = builder.gep(array(0).data, [args[1]])
            sums = [
                [cgutils.alloca_once(builder, ir.VectorType(_F32, length)) for length in lengths]
                for _ in rows
            ]
            for row_sums in sums:
                for place in row_sums:
                    builder.store(ir.Constant(place.type.pointee, None), place)

            def column(k: Any) -> None:
                first = builder.gep(tokens, [builder.mul(k, size(units * UNIT))])
                values = [builder.load(place, align=4) for place in places(first)]
                for row, row_sums in zip(rows, sums, strict=True):
                    one = builder.load(builder.gep(row, [k]))
                    for length, value, place in zip(lengths, values, row_sums, strict=True):
                        product = builder.fmul(
                            spread(builder, one, length), value, flags=("contract",)
                        )
                        held = builder.load(place)
                        builder.store(builder.fadd(held, product, flags=("contract",)), place)

            whole = builder.mul(builder.udiv(width, size(_LINE)), size(_LINE))
            with cgutils.for_range_slice(builder, size(0), whole, size(_LINE)) as (start, _):
                first = builder.mul(start, args[6])
                with cgutils.for_range(builder, args[6]) as line:
                    shift = builder.mul(line.index, size(_LINE))
                    fetch(builder, builder.gep(fetched, [builder.add(first, shift)]))
                after = builder.add(start, size(_LINE))
                with cgutils.for_range_slice(builder, start, after, size(_UNROLLED)) as (k, _):
                    for part in range(_UNROLLED):
                        column(builder.add(k, size(part)))
            with cgutils.for_range_slice(builder, whole, width, size(1)) as (k, _):
                column(k)
            target = builder.gep(array(7).data, [args[8]])
            for i, row_sums in enumerate(sums):
                row_place = builder.gep(target, [size(i * units * UNIT)])
                for place, total in zip(places(row_place), row_sums, strict=True):
                    builder.store(builder.load(total), place, align=4)
            return context.get_dummy_value()

        number = types.int64
        given = panels, number, w, number, number, number, number, out, number
        return types.void(*given), codegen

    made: Callable[..., None] = product
    return made


_product_1, _product_2, _product_3, _product_4 = (_make(units) for units in range(1, 5))
_product_5, _product_6, _product_7, _product_8 = (_make(units) for units in range(5, 9))


@njit(cache=True)
def units_of(tokens):  # type: ignore[no-untyped-def]
    """Units that so many tokens fill, the last one perhaps in part."""
    return (tokens + UNIT - 1) // UNIT


@njit(cache=True)
def panels_of(tokens):  # type: ignore[no-untyped-def]
    """Panels of so many tokens."""
    return (units_of(tokens) + most_units() - 1) // most_units()


@njit(cache=True)
def panel_bound(number, tokens):  # type: ignore[no-untyped-def]
    """The first unit of a panel, as all panels have about the same size.

    Equals ``units_of(tokens)`` for the number behind the last panel.
    """
    return number * units_of(tokens) // panels_of(tokens)


@njit(cache=True)
def room_for_panels(units, width):  # type: ignore[no-untyped-def]
    """Flat float32, not filled, for tokens of so many units, or results of ``width`` rows."""
    # The last vector is written whole.
    return packed_floats(units * UNIT * width + lane_count())


@njit(cache=True)
def fetched_lines(panel, panels, width):  # type: ignore[no-untyped-def]
    """What the product of a panel fetches of the ``COLUMN_ROWS`` weight rows that come next.

    Args:
        panel: number of the panel, each of which fetches a part.
        panels: how many.
        width: of the weight.

    Returns:
        Lines in the time of a line of each row, and the first element behind the rows' beginning.
    """
    lines = (COLUMN_ROWS + panels - 1) // panels
    return lines, panel * lines * (width // _LINE * _LINE)


@njit(cache=True)
def _pack_tokens(x, places, first, tokens, out):  # type: ignore[no-untyped-def]
    """Pack ``x[places[first : first + tokens]]`` into panels; the last token fills what is left.

    Args:
        x: ``[T, K]`` float32, contiguous.
        places: ``[P]`` int64.
        first: first place.
        tokens: at least one.
        out: from :func:`room_for_panels`. The panel that begins with unit ``u`` lies from
            ``K * u * UNIT`` on.
    """
    lanes = lane_count()
    for panel in range(panels_of(tokens)):
        begin, end = panel_bound(panel, tokens) * UNIT, panel_bound(panel + 1, tokens) * UNIT
        held = end - begin
        # Backwards, as a vector that is cut in half ends in the next column.
        shift = (held - 1) // lanes * lanes
        while shift >= 0:
            count = min(lanes, tokens - begin - shift)
            start = begin * x.shape[1] + shift
            pack_tile(x, places, first + begin + shift, count, held, out, start)
            shift -= lanes


pack_tokens = apart(_pack_tokens)


@njit(fastmath=FASTMATH, cache=True)
def _column_product(panels, begin, units, w, n, last, soon, lines, out, at):  # type: ignore[no-untyped-def]
    """Up to ``COLUMN_ROWS`` weight rows times the tokens of one panel.

    ``out[at + i * units * UNIT + t]`` is the panel's token ``t`` times ``w[n + i]``. Rows from
    ``last`` on are replaced by the one before.

    Args:
        panels: packed tokens.
        begin: where the panel lies.
        units: of the panel.
        w: ``[N, K]`` float32, contiguous.
        n: first weight row.
        last: end of the weight rows.
        soon: element of the weight from which on lines are fetched meanwhile.
        lines: how many for each line of a weight row.
        out: flat float32.
        at: where the results lie, which are of ``COLUMN_ROWS`` rows in any case.
    """
    if units == 1:
        _product_1(panels, begin, w, n, last, soon, lines, out, at)
    elif units == 2:
        _product_2(panels, begin, w, n, last, soon, lines, out, at)
    elif units == 3:
        _product_3(panels, begin, w, n, last, soon, lines, out, at)
    elif units == 4:
        _product_4(panels, begin, w, n, last, soon, lines, out, at)
    elif units == 5:
        _product_5(panels, begin, w, n, last, soon, lines, out, at)
    elif units == 6:
        _product_6(panels, begin, w, n, last, soon, lines, out, at)
    elif units == 7:
        _product_7(panels, begin, w, n, last, soon, lines, out, at)
    else:
        _product_8(panels, begin, w, n, last, soon, lines, out, at)


column_product = apart(_column_product)
