"""How the kernel cuts its work: pure arithmetic of shapes and of a device's buffers and cores."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from ascend_ops_core.devices import DeviceFacts
from ascend_ops_core.tiling import SHARE, next_power_of_two

from ascend_attention.ops.sparse_attention.plan import SMALLEST_TILE

_MOST_ROWS = 128
_MOST_TAKEN = 128
# Of every value that a query row gathers: sum, product and rescaled sum in float32.
_SUM_BYTES = 12
# Of every logit: itself, its weight, the mask in float32 and the rounded weight.
_LOGIT_BYTES = 14
# Tiles of queries, keys and values that the compiler keeps in L1, each in two buffers.
_TILES_IN_L1 = 6
_LEAST_TILES_OF_A_SPLIT = 2


class Tile(NamedTuple):
    """Sizes of a product.

    Attributes:
        taken: queries; a power of two of at least 16.
        rows: keys; a power of two.
        padded: width of a head as the kernel sees it; a power of two of at least 16.
    """

    taken: int
    rows: int
    padded: int


@dataclass(frozen=True)
class Plan:
    """Sizes of a launch.

    Attributes:
        by_tokens: a tile of queries is one head of several tokens, rather than the heads of one
            token that share a key head.
        taken: queries of a tile; a power of two of at least 16.
        rows: cached rows of a tile, which lie in one block; a power of two.
        padded: width of a head as the kernel sees it; a power of two of at least 16.
        splits: programs that share the context of one tile of queries.
        programs: units of work.
    """

    by_tokens: bool
    taken: int
    rows: int
    padded: int
    splits: int
    programs: int


def plan(
    facts: DeviceFacts,
    *,
    tokens: int,
    requests: int,
    heads: int,
    key_heads: int,
    width: int,
    columns: int,
    per_block: int,
    window: int,
    itemsize: int,
) -> Plan:
    """Cut the attention of a step.

    Every tile of queries reads its context once. Heads that share a key head make a tile of decode
    steps; where requests have more tokens than such heads, tokens of one head make it instead, and
    keys are read less often. Contexts are split between programs only where tiles of queries are
    too few for the cores, into as many parts as fill them, of at least two tiles each.

    Args:
        facts: the device family.
        tokens: of the step.
        requests: of the step.
        heads: of the query.
        key_heads: of the cache.
        width: of a head.
        columns: of the block table.
        per_block: rows of a block.
        window: tokens that one sees; 0 for all.
        itemsize: bytes of a cached value.
    """
    group = heads // key_heads
    by_tokens = tokens > requests * max(group, 1)
    most_rows = min(_MOST_ROWS, per_block & -per_block)
    tile = tile_of(facts, width, tokens if by_tokens else group, itemsize, most_rows)
    taken, rows, padded = tile.taken, tile.rows, tile.padded
    by_head = tokens * key_heads * -(-group // taken)
    units = -(-tokens // taken) * heads if by_tokens else by_head
    reach = columns * per_block
    if window:
        reach = min(reach, window + rows)
    most_splits = max(1, -(-reach // rows) // _LEAST_TILES_OF_A_SPLIT)
    splits = 1 if by_tokens else min(-(-facts.cube_cores // max(units, 1)), most_splits)
    return Plan(by_tokens, taken, rows, padded, splits, units * splits)


def tile_of(
    facts: DeviceFacts, width: int, queries: int, itemsize: int, most_rows: int = _MOST_ROWS
) -> Tile:
    """The largest tile whose parts fit: as many keys as may be, then as many queries as there are.

    Args:
        facts: the device family.
        width: of a head.
        queries: that may share a tile.
        itemsize: bytes of a key's value.
        most_rows: keys that a tile may have; a power of two of at least 16.
    """
    padded = max(next_power_of_two(width), SMALLEST_TILE)
    rows = most_rows
    while rows > SMALLEST_TILE and not _fits(facts, SMALLEST_TILE, rows, padded, itemsize):
        rows //= 2
    most = min(max(next_power_of_two(queries), SMALLEST_TILE), _MOST_TAKEN)
    taken = SMALLEST_TILE
    while 2 * taken <= most and _fits(facts, 2 * taken, rows, padded, itemsize):
        taken *= 2
    return Tile(taken, rows, padded)


def _fits(facts: DeviceFacts, taken: int, rows: int, padded: int, itemsize: int) -> bool:
    unified = taken * (padded * _SUM_BYTES + rows * _LOGIT_BYTES)
    products = taken * (padded + rows) * 4
    tiles = _TILES_IN_L1 * max(taken, rows) * padded * itemsize
    return (
        unified <= int(facts.ub_bytes * SHARE)
        and products <= facts.l0c_bytes
        and tiles <= facts.l1_bytes
    )
