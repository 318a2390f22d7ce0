"""Shapes of tiles that are narrowed to eight bits."""

from __future__ import annotations

import torch

from ascend_ops_core.devices import DeviceFacts
from ascend_ops_core.tiling import next_power_of_two

_PADDED_ROWS = 32
_WIDEST_PADDED = 128


def most_rows(facts: DeviceFacts, dtype: torch.dtype, width: int, rows: int) -> int:
    """The largest number of rows that a tile narrowed to ``dtype`` may have, for ``tile_rows``.

    A2 and A3 narrow to int8 by way of int32, for which their compiler pads a tile to 32 rows and a
    vector not at all. So narrow tiles get up to 32 rows there and wide ones a single row, which
    :func:`kernels.rounded_to_int8` narrows as a vector.

    Args:
        facts: the device family tiled for.
        dtype: what the tile is narrowed to.
        width: elements of a row as the kernel sees it.
        rows: rows that there are.
    """
    limit = next_power_of_two(rows)
    if dtype == torch.int8 and facts.family in ("A2", "A3"):
        return min(limit, _PADDED_ROWS) if width <= _WIDEST_PADDED else 1
    return limit
