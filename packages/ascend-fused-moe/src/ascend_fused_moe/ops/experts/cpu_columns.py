"""Both products of an expert that many tokens chose, in panels of tokens."""

from __future__ import annotations

from typing import Any

import numpy as np
from ascend_ops_core.cpu_apart import apart
from ascend_ops_core.cpu_columns import (
    COLUMN_ROWS,
    UNIT,
    column_product,
    fetched_lines,
    most_units,
    pack_tokens,
    panel_bound,
    panels_of,
    room_for_panels,
    units_of,
)
from ascend_ops_core.cpu_numeric import FASTMATH
from ascend_ops_core.cpu_panels import lane_count, pack_tile
from numba import njit, types
from numba.extending import overload

from ascend_fused_moe.ops.experts.cpu_activation import gated

# Pairs of a block from which panels are faster than tiles.
_LEAST_PAIRS = 28


@njit(fastmath=FASTMATH, error_model="numpy", cache=True)
def _activate(both, half, count, how, hidden, at):  # type: ignore[no-untyped-def]
    for i in range(count):
        hidden[at + i] = gated(both[i], both[half + i], how)


@njit(fastmath=FASTMATH, cache=True)
def _up(panels, tokens, w, gate, up, count, then, column, inter, how, both, hidden, begin):  # type: ignore[no-untyped-def]
    """Fill some columns of the activations of one expert's pairs, from two strips of its rows.

    Args:
        panels: the tokens, packed.
        tokens: how many.
        w: ``[N, K]`` float32.
        gate: first gate row.
        up: first up row.
        count: rows of each.
        then: first gate row of the strips that come next.
        column: of the activations, the first one.
        inter: columns of the activations.
        how: of the activation.
        both: for the results of ``COLUMN_ROWS`` rows of each, in halves.
        hidden: panels of activations.
        begin: where those of the expert lie.
    """
    width = w.shape[1]
    half = both.shape[0] // 2
    number = panels_of(tokens)
    for n in range(0, count, COLUMN_ROWS):
        later = n + COLUMN_ROWS
        soon = gate + later if later < count else then
        for panel in range(number):
            first = panel_bound(panel, tokens)
            units = panel_bound(panel + 1, tokens) - first
            place = first * UNIT * width
            lines, ahead = fetched_lines(panel, number, width)
            column_product(
                panels, place, units, w, gate + n, gate + count, soon * width + ahead, lines,
                both, 0,
            )  # fmt: skip
            column_product(
                panels, place, units, w, up + n, up + count, (soon + up - gate) * width + ahead,
                lines, both, half,
            )  # fmt: skip
            held = units * UNIT
            at = begin + first * UNIT * inter + (column + n) * held
            _activate(both, half, min(COLUMN_ROWS, count - n) * held, how, hidden, at)


@njit(fastmath=FASTMATH, cache=True)
def _down(hidden, begin, every, pair, tokens, w, row, count, then, of, scales, part, turned, sums):  # type: ignore[no-untyped-def]
    """Add a strip of the products of one expert's pairs to the sums of their tokens.

    Args:
        hidden: panels of activations.
        begin: where those of the expert lie.
        every: numbers from 0.
        pair: the expert's first pair.
        tokens: pairs of the expert.
        w: ``[N, K]`` float32.
        row: first row.
        count: rows.
        then: the first row of the strip that comes next.
        of: token of every pair.
        scales: weight of every pair.
        part: for the results.
        turned: for those of one panel, token by token.
        sums: of every token.
    """
    width = w.shape[1]
    number = panels_of(tokens)
    rows = (count + COLUMN_ROWS - 1) // COLUMN_ROWS * COLUMN_ROWS
    for n in range(0, count, COLUMN_ROWS):
        later = n + COLUMN_ROWS
        soon = row + later if later < count else then
        for panel in range(number):
            first = panel_bound(panel, tokens)
            units = panel_bound(panel + 1, tokens) - first
            lines, ahead = fetched_lines(panel, number, width)
            column_product(
                hidden, begin + first * UNIT * width, units, w, row + n, row + count,
                soon * width + ahead, lines, part, (first * rows + n * units) * UNIT,
            )  # fmt: skip
    lanes = lane_count()
    length = (count + lanes - 1) // lanes * lanes
    for panel in range(number):
        first = panel_bound(panel, tokens) * UNIT
        held = panel_bound(panel + 1, tokens) * UNIT - first
        by_rows = part[first * rows : (first + held) * rows].reshape((rows, held))
        for d in range(0, count, lanes):
            pack_tile(by_rows, every, d, min(lanes, count - d), length, turned, d)
        for t in range(min(held, tokens - first)):
            target = sums[of[pair + first + t]]
            scale = scales[pair + first + t]
            place = t * length
            for d in range(count):
                target[d] += scale * turned[place + d]


_fill, _add = apart(_up), apart(_down)


@njit(cache=True)
def _places(starts, inter):  # type: ignore[no-untyped-def]
    places = np.empty(starts.shape[0] - 1, dtype=np.int64)
    most = 0
    total = 0
    for j in range(places.shape[0]):
        pairs = starts[j + 1] - starts[j]
        places[j] = -1
        if pairs >= _LEAST_PAIRS:
            units = units_of(pairs)
            places[j] = total * UNIT * inter
            total += units
            most = max(most, units)
    return places, room_for_panels(total, inter), most


@njit(cache=True)
def _no_places(starts):  # type: ignore[no-untyped-def]
    places = np.empty(starts.shape[0] - 1, dtype=np.int64)
    places[:] = -1
    return places, room_for_panels(0, 0), 0


def column_blocks(starts: Any, inter: int, w: Any) -> Any:
    """Which blocks of pairs are computed in panels; for kernels only.

    Args:
        starts: where each block starts, and where the last one ends.
        inter: columns of the activations.
        w: a weight; in bfloat16 no block is.

    Returns:
        Where each block's activations lie, -1 for the other blocks; room for the activations; and
        units of the largest block.
    """
    raise NotImplementedError


@overload(column_blocks)
def _column_blocks(starts, inter, w):  # type: ignore[no-untyped-def]
    if w.dtype == types.float32:
        return lambda starts, inter, w: _places(starts, inter)
    return lambda starts, inter, w: _no_places(starts)


@njit(cache=True)
def column_room(units, width, rows):  # type: ignore[no-untyped-def]
    """What a thread needs for blocks of so many units.

    Args:
        units: of the largest block; 0 if there is none.
        width: of the tokens.
        rows: of a task of the second product.

    Returns:
        Number of the block whose tokens are packed; its packed tokens; results of the first
        product; results of the second one, by rows and by tokens.
    """
    packed = np.empty(1, dtype=np.int64)
    packed[0] = -1
    panels = room_for_panels(units, width)
    both = room_for_panels(min(units, most_units()), 2 * COLUMN_ROWS)
    part = room_for_panels(units, rows + COLUMN_ROWS)
    return packed, panels, both, part, room_for_panels(min(units, most_units()), rows + UNIT * 2)


def fill_columns(
    x: Any, of: Any, j: int, starts: Any, w: Any, gate: int, inter: int, count: int, then: int,
    column: int, how: Any, room: Any, hidden: Any, place: int,
) -> None:  # fmt: skip
    """Fill some columns of the activations of one block's pairs; for kernels only."""
    raise NotImplementedError


@overload(fill_columns)
def _fill_columns(  # type: ignore[no-untyped-def]
    x, of, j, starts, w, gate, inter, count, then, column, how, room, hidden, place
):
    def fill(x, of, j, starts, w, gate, inter, count, then, column, how, room, hidden, place):  # type: ignore[no-untyped-def]
        packed, panels, both, _, _ = room
        pairs = starts[j + 1] - starts[j]
        if packed[0] != j:
            pack_tokens(x, of, starts[j], pairs, panels)
            packed[0] = j
        up = gate + inter
        _fill(panels, pairs, w, gate, up, count, then, column, inter, how, both, hidden, place)

    def nothing(x, of, j, starts, w, gate, inter, count, then, column, how, room, hidden, place):  # type: ignore[no-untyped-def]
        return None

    return fill if w.dtype == types.float32 else nothing


def add_rows(
    hidden: Any, place: int, every: Any, j: int, starts: Any, w: Any, row: int, count: int,
    then: int, of: Any, scales: Any, room: Any, sums: Any,
) -> None:  # fmt: skip
    """Add a strip of one block's products to the sums of its tokens; for kernels only."""
    raise NotImplementedError


@overload(add_rows)
def _add_rows(hidden, place, every, j, starts, w, row, count, then, of, scales, room, sums):  # type: ignore[no-untyped-def]
    def add(hidden, place, every, j, starts, w, row, count, then, of, scales, room, sums):  # type: ignore[no-untyped-def]
        _, _, _, part, turned = room
        pairs = starts[j + 1] - starts[j]
        _add(
            hidden, place, every, starts[j], pairs, w, row, count, then, of, scales, part, turned,
            sums,
        )  # fmt: skip

    def nothing(hidden, place, every, j, starts, w, row, count, then, of, scales, room, sums):  # type: ignore[no-untyped-def]
        return None

    return add if w.dtype == types.float32 else nothing
