"""Products of panels of tokens with weights as they lie; without AVX-512 in test_cpu_tiles.py."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from ascend_ops_core.cpu_columns import (
    COLUMN_ROWS,
    UNIT,
    column_product,
    fetched_lines,
    pack_tokens,
    panel_bound,
    panels_of,
    room_for_panels,
    units_of,
)
from ascend_ops_core.testing import assert_close
from numba import njit


@njit
def product(x, places, first, tokens, w, row, last, out):  # type: ignore[no-untyped-def]
    """Tokens times rows by panels, into ``out [rows, tokens]``."""
    panels = room_for_panels(units_of(tokens), w.shape[1])
    pack_tokens(x, places, first, tokens, panels)
    number = panels_of(tokens)
    for n in range(row, last, COLUMN_ROWS):
        for panel in range(number):
            begin = panel_bound(panel, tokens)
            units = panel_bound(panel + 1, tokens) - begin
            part = np.full(COLUMN_ROWS * units * UNIT + 5, -7, dtype=np.float32)
            lines, ahead = fetched_lines(panel, number, w.shape[1])
            # What is fetched may end behind the weight.
            soon = (n + COLUMN_ROWS) * w.shape[1] + ahead
            column_product(
                panels, begin * UNIT * w.shape[1], units, w, n, last, soon, lines, part, 3
            )
            for i in range(min(COLUMN_ROWS, last - n)):
                for t in range(min(units * UNIT, tokens - begin * UNIT)):
                    out[n - row + i, begin * UNIT + t] = part[3 + i * units * UNIT + t]
            if (part[:3] != -7).any() or (part[3 + COLUMN_ROWS * units * UNIT :] != -7).any():
                return False
    return True


def check(tokens: int, rows: int, width: int) -> None:
    """Tokens from anywhere, rows from the middle of a weight."""
    generator = torch.Generator().manual_seed(tokens * rows + width)
    x = torch.randn(9, width, generator=generator)
    weight = torch.randn(rows + 4, width, generator=generator)
    places = torch.randint(9, (tokens + 3,), generator=generator)
    out = np.full((rows, tokens), -7, dtype=np.float32)
    assert product(x.numpy(), places.numpy(), 2, tokens, weight.numpy(), 3, 3 + rows, out)
    expected = weight[3 : 3 + rows].double() @ x[places[2 : 2 + tokens]].double().T
    assert_close(torch.from_numpy(out), expected, scale=4)


@pytest.mark.parametrize("width", [1, 15, 16, 17, 64])
@pytest.mark.parametrize("rows", [1, 5, 6, 13])
def test_product(rows: int, width: int) -> None:
    for tokens in (1, 8, 9, 16, 17, 32, 48, 63, 64, 65, 150):
        check(tokens, rows, width)


@njit
def bounds(tokens):  # type: ignore[no-untyped-def]
    return [panel_bound(panel, tokens) for panel in range(panels_of(tokens) + 1)]


@pytest.mark.parametrize("tokens", [1, 8, 64, 65, 130, 200])
def test_panels_are_of_about_the_same_size(tokens: int) -> None:
    found = bounds(tokens)
    sizes = np.diff(found)
    assert (found[0], found[-1]) == (0, -(-tokens // UNIT))
    assert sizes.min() >= 1
    assert sizes.max() - sizes.min() <= 1
