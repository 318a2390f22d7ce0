"""How the attention kernels cut their work: pure arithmetic of a device's buffers and cores."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from ascend_ops_core.devices import DeviceFacts
from ascend_ops_core.tiling import SHARE, next_power_of_two

SMALLEST_TILE = 16
"""The smallest side of a product that the matrix unit takes."""

# Row tiles that the compiler keeps in L1: each pass loads one, in several buffers.
_ROW_TILES_IN_L1 = 11

# On A5 the accumulator leaves through the unified buffer: as float32, the zeros it is added to,
# their sum, and the rounded result. On A2 and A3 it goes from the matrix unit straight to memory.
_LEAVING_BYTES = {"A5": 14}

# Per head and row: logits, weights and rounded weights of both passes.
_WEIGHT_BYTES = 24

_MOST_ROWS = 128
_FEWEST_ROWS = 32

# Gathered rows of one round. They are read again for every tile of heads, so they should stay in
# the L2 cache, which has 192 MiB on A2 and which no document states for A3 and A5.
_GATHERED_BYTES = 128 * 1024**2

_LEAST_TILES_OF_A_SPLIT = 2


@dataclass(frozen=True)
class Plan:
    """Sizes of a launch.

    Attributes:
        heads: heads of one program; a power of two of at least 16.
        rows: rows of one tile; a power of two.
        padded: width of a gathered row; a power of two of at least 16.
        columns: rows that are gathered for each token, each source in whole tiles.
        splits: programs that share the rows of one token and tile of heads.
        tokens: tokens of one round, whose gathered rows are held at the same time.
    """

    heads: int
    rows: int
    padded: int
    columns: int
    splits: int
    tokens: int


def plan(
    facts: DeviceFacts, tokens: int, heads: int, width: int, widths: list[int], itemsize: int
) -> Plan:
    """Cut the attention of a step.

    As many heads as the accumulator of the matrix unit (and on A5 the unified buffer) holds share
    each gathered tile, as many rows as L1 holds make a tile. Rows of one token are split between
    programs only where tokens and tiles of heads are too few for the cores, as in decode: into as
    many parts as fill the cores, of at least two tiles each.

    Args:
        facts: the device family.
        tokens: of the step.
        heads: of the query.
        width: of a row.
        widths: rows per token of every source.
        itemsize: bytes of a gathered value.
    """
    padded = max(next_power_of_two(width), SMALLEST_TILE)
    rows = _most(
        _FEWEST_ROWS if itemsize < 4 else SMALLEST_TILE,
        min(_MOST_ROWS, next_power_of_two(max(widths, default=0))),
        lambda size: (_ROW_TILES_IN_L1 * size + 2 * SMALLEST_TILE) * padded * itemsize,
        facts.l1_bytes,
    )
    most_heads = max(next_power_of_two(heads), SMALLEST_TILE)
    taken = _most(
        SMALLEST_TILE, most_heads, lambda size: size * (padded + 2 * rows) * 4, facts.l0c_bytes
    )
    leaving = _LEAVING_BYTES.get(facts.family, 0)
    taken = _most(
        SMALLEST_TILE,
        taken,
        lambda size: size * (padded * leaving + rows * _WEIGHT_BYTES),
        int(facts.ub_bytes * SHARE),
    )
    columns = sum(-(-size // rows) * rows for size in widths)
    held = max(1, _GATHERED_BYTES // max(1, columns * padded * itemsize))
    rounds = max(1, -(-tokens // held))
    together = -(-tokens // rounds)
    splits = splits_of(facts, together * -(-heads // taken), columns // rows)
    return Plan(taken, rows, padded, columns, splits, together)


def splits_of(facts: DeviceFacts, units: int, tiles: int) -> int:
    """Programs that share the rows of one token and tile of heads.

    Args:
        facts: the device family.
        units: tokens times tiles of heads that run together.
        tiles: of rows.
    """
    most = max(1, tiles // _LEAST_TILES_OF_A_SPLIT)
    return min(-(-facts.cube_cores // max(units, 1)), most)


def _most(least: int, most: int, size_of: Callable[[int], int], budget: int) -> int:
    """The largest power of two from ``least`` to ``most`` that fits; at least ``least``."""
    chosen = least
    while 2 * chosen <= most and size_of(2 * chosen) <= budget:
        chosen *= 2
    return chosen
