"""Where a step's rows lie, against one look-up per row."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

pytest.importorskip("numba")

from ascend_attention.layers.cpu_step_rows import NO_TABLES, StateTables, step_rows

WINDOW, WINDOW_ROWS, STATE_ROWS, ENTRY_ROWS, COLUMNS = 5, 4, 8, 2, 8
REQUEST = np.array([0, 0, 2, 2, 2])
POSITION = np.array([0, 1, 10, 11, 12])


def tables(ratio: int, seed: int) -> StateTables:
    made = np.random.default_rng(seed).permutation(6 * COLUMNS).astype(np.int32)
    states, entries = made.reshape(2, 3, COLUMNS)
    slots = np.array([-1, 3, 16, 17, 90])
    overlap = 2 if ratio == 4 else 1
    return StateTables(slots, states, STATE_ROWS, entries, ENTRY_ROWS, ratio, overlap)


def rows(own: StateTables, other: StateTables, select: bool, position: Any = POSITION) -> Any:
    table = np.arange(100, 100 + 3 * COLUMNS, dtype=np.int32).reshape(3, COLUMNS)
    slots = np.array([7, -1, 40, 41, 42])
    given = tuple(own), tuple(other), select
    return step_rows(REQUEST, position, slots, table, WINDOW_ROWS, WINDOW, *given), table, slots


def look_up(table: Any, request: int, row: int, per_block: int) -> tuple[int, int]:
    return (-1, 0) if row < 0 else (int(table[request, row // per_block]), row % per_block)


def pairs(block: Any, offset: Any) -> list[tuple[int, int]]:
    return list(zip(block.ravel().tolist(), offset.ravel().tolist(), strict=True))


@pytest.mark.parametrize("ratio", [0, 2, 4])
def test_rows_of_a_step(ratio: int) -> None:
    own = tables(ratio, 1) if ratio else NO_TABLES
    other = tables(ratio, 2) if ratio == 4 else NO_TABLES
    made, table, slots = rows(own, other, select=ratio == 4)
    position, window, own_rows, other_rows, seen, entries, selection = made
    tokens = list(zip(REQUEST.tolist(), POSITION.tolist(), strict=True))
    assert position.tolist() == POSITION.tolist()
    places = [divmod(int(slot), WINDOW_ROWS) for slot in slots]
    assert [b for b, _ in pairs(*window)] == [max(b, -1) for b, _ in places]
    assert pairs(*window)[2:] == places[2:]
    assert pairs(*seen) == [
        look_up(table, r, row, WINDOW_ROWS)
        for r, p in tokens
        for row in range(p - WINDOW + 1, p + 1)
    ]
    for given, found in ((own, own_rows), (other, other_rows)):
        _check_states(given, found, tokens if given.ratio else [])
    visible = [(p + 1) // ratio if ratio else 0 for _, p in tokens]
    if ratio == 4:
        assert entries[0].size == 0
        assert selection[0] is other.entries or np.array_equal(selection[0], other.entries)
        assert np.array_equal(selection[1], own.entries)
        assert selection[2].tolist() == REQUEST.tolist()
        assert selection[3].tolist() == visible
        return
    assert entries[0].shape == (len(tokens), max(visible))
    assert pairs(*entries) == [
        look_up(own.entries, r, e if e < seen_entries else -1, ENTRY_ROWS)
        for (r, _), seen_entries in zip(tokens, visible, strict=True)
        for e in range(max(visible))
    ]


def _check_states(given: StateTables, found: Any, tokens: list[tuple[int, int]]) -> None:
    block, offset, entry, read_block, read_offset, to_block, to_offset = found
    assert pairs(block, offset) == [divmod(int(slot), STATE_ROWS) for slot in given.slots]
    closed = [(r, p // given.ratio) for r, p in tokens if (p + 1) % given.ratio == 0]
    assert entry.tolist() == [e for _, e in closed]
    width = given.overlap * given.ratio
    assert pairs(read_block, read_offset) == [
        look_up(given.states, r, row, STATE_ROWS)
        for r, e in closed
        for row in range((e + 1) * given.ratio - width, (e + 1) * given.ratio)
    ]
    assert pairs(to_block, to_offset) == [
        look_up(given.entries, r, e, ENTRY_ROWS) for r, e in closed
    ]


@pytest.mark.parametrize(
    ("ratio", "select", "last"),
    [(0, False, WINDOW_ROWS * COLUMNS), (2, False, 31), (4, True, 31)],
    ids=["window", "entries", "selection"],
)
def test_a_row_beyond_a_block_table(ratio: int, select: bool, last: int) -> None:
    own = tables(ratio, 1) if ratio else NO_TABLES
    if ratio:
        # Entries of positions up to 23 or 47 have a place.
        own = own._replace(entries=own.entries[:, :6].copy())
    other = own if select else NO_TABLES
    position = np.array([0, 1, 10, 11, last if ratio != 4 else 4 * 12 + 3])
    with pytest.raises(IndexError, match="beyond its block table"):
        rows(own, other, select, position)
