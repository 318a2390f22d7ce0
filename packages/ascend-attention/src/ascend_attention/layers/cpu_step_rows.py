"""Where the rows of a step of a few tokens lie in paged caches, in one pass.

Everything is numpy. Shapes: T tokens, R requests, nb blocks of a request, N entries that the step
completes. A negative block marks what is not read or not written.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numba import njit

Array = np.ndarray[Any, Any]


class StateTables(NamedTuple):
    """The two caches of a compressor in a step.

    Attributes:
        slots: ``[T]`` int64 of the states; negative for padding.
        states: ``[R, nb]`` int32, blocks of the states.
        state_rows: rows that a block of states holds.
        entries: ``[R, nb]`` int32, blocks of the entries.
        entry_rows: rows that a block of entries holds.
        ratio: tokens per entry; 0 without a compressor.
        overlap: windows that an entry reads.
    """

    slots: Array
    states: Array
    state_rows: int
    entries: Array
    entry_rows: int
    ratio: int
    overlap: int


NO_TABLES = StateTables(
    np.zeros(0, dtype=np.int64),
    np.zeros((0, 0), dtype=np.int32),
    1,
    np.zeros((0, 0), dtype=np.int32),
    1,
    0,
    1,
)


@njit(cache=True)
def _of_slots(slots, block_tokens):  # type: ignore[no-untyped-def]
    block = np.empty(slots.shape[0], dtype=np.int64)
    offset = np.empty(slots.shape[0], dtype=np.int64)
    for t in range(slots.shape[0]):
        # Rounding down gives padding slots, which are negative, a negative block.
        block[t] = slots[t] // block_tokens
        offset[t] = slots[t] - block[t] * block_tokens
    return block, offset


@njit(cache=True)
def _last(table, request, end, count, rows_per_block):  # type: ignore[no-untyped-def]
    """The ``count`` rows in front of each ``end [N]``, in order; none in front of row 0."""
    block = np.empty((end.shape[0], count), dtype=np.int64)
    offset = np.empty((end.shape[0], count), dtype=np.int64)
    for n in range(end.shape[0]):
        for i in range(count):
            row = end[n] - count + i
            block[n, i] = -1
            offset[n, i] = 0
            if row >= 0:
                column = row // rows_per_block
                if column >= table.shape[1]:
                    raise IndexError("a row of this step lies beyond its block table")
                block[n, i] = table[request[n], column]
                offset[n, i] = row - column * rows_per_block
    return block, offset


@njit(cache=True)
def _all(table, request, visible, rows_per_block):  # type: ignore[no-untyped-def]
    """Rows from 0 to ``visible [T]``."""
    longest = 0
    for t in range(visible.shape[0]):
        longest = max(longest, visible[t])
    block = np.full((visible.shape[0], longest), -1, dtype=np.int64)
    offset = np.zeros((visible.shape[0], longest), dtype=np.int64)
    for t in range(visible.shape[0]):
        for row in range(visible[t]):
            column = row // rows_per_block
            if column >= table.shape[1]:
                raise IndexError("an entry of this step lies beyond its block table")
            block[t, row] = table[request[t], column]
            offset[t, row] = row - column * rows_per_block
    return block, offset


@njit(cache=True)
def _closes(position, ratio):  # type: ignore[no-untyped-def]
    return ratio > 0 and position >= 0 and (position + 1) % ratio == 0


@njit(cache=True)
def _state_rows(request, position, tables):  # type: ignore[no-untyped-def]
    """See ``StateRows`` of ``cpu_few_writes.py``."""
    slots, states, state_rows, entries, entry_rows, ratio, overlap = tables
    block, offset = _of_slots(slots, state_rows)
    count = 0
    for t in range(position.shape[0]):
        if _closes(position[t], ratio):
            count += 1
    entry = np.empty(count, dtype=np.int64)
    of = np.empty(count, dtype=np.int64)
    count = 0
    for t in range(position.shape[0]):
        if _closes(position[t], ratio):
            entry[count] = position[t] // ratio
            of[count] = request[t]
            count += 1
    read_block, read_offset = _last(states, of, (entry + 1) * ratio, overlap * ratio, state_rows)
    to_block, to_offset = _last(entries, of, entry + 1, 1, entry_rows)
    return (
        block, offset, entry, read_block, read_offset, to_block.reshape(-1), to_offset.reshape(-1)
    )  # fmt: skip


@njit(cache=True)
def step_rows(request, position, slots, table, rows_per_block, window, own, other, select):  # type: ignore[no-untyped-def]
    """``StepArrays`` of ``cpu_few_tokens.py``, plain.

    Args:
        request: ``[T]`` int64.
        position: ``[T]`` int64.
        slots: ``[T]`` int64 of the sliding window; negative for padding.
        table: ``[R, nb]`` int32, blocks of the sliding window.
        rows_per_block: rows that a block of the sliding window holds.
        window: tokens of it.
        own: :class:`StateTables` of the layer's compressor, plain.
        other: of the indexer's.
        select: whether entries are selected, instead of all being read.

    Raises:
        IndexError: a row lies beyond a block table.
    """
    seen = _last(table, request, position + 1, window, rows_per_block)
    visible = np.zeros(position.shape[0], dtype=np.int64)
    if own[5] > 0:
        visible = (position + 1) // own[5]
    longest = np.zeros(position.shape[0], dtype=np.int64) if select else visible
    entries = _all(own[3], request, longest, own[4])
    if select:
        for t in range(position.shape[0]):
            if visible[t] > min(own[3].shape[1] * own[4], other[3].shape[1] * other[4]):
                raise IndexError("an entry of this step lies beyond its block table")
    return (
        position,
        _of_slots(slots, rows_per_block),
        _state_rows(request, position, own),
        _state_rows(request, position, other),
        seen,
        entries,
        (other[3], own[3], request, visible),
    )
