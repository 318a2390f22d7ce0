"""Faults in the kernels around block drafts that their proofs notice."""

from __future__ import annotations

import pytest
from ascend_ops_core.testing.mutants import assert_noticed

pytestmark = pytest.mark.interpreter


@pytest.mark.parametrize(
    ("original", "replacement"),
    [
        ("limit - 1).to", "limit).to"),
        ("_between(limit - end, 0, QUERIES)", "QUERIES"),
        ("end -= tl.load(rejected_ptr + unit).to(tl.int32)", "end -= 0"),
        ("mask=query < QUERIES)\n            held", "mask=query < QUERY_BLOCK)\n            held"),
        ("offset = position + done - entry * BLOCK_SIZE", "offset = 0"),
    ],
    ids=["position beyond", "slot beyond", "rejected kept", "store unmasked", "offset lost"],
)
def test_expand_blocks(original: str, replacement: str) -> None:
    assert_noticed("ascend_specdec::expand_blocks", original, replacement)


@pytest.mark.parametrize(
    ("original", "replacement"),
    [
        ("if place >= tap:", "if unit >= tap:"),
        ("tap * WIDTH + offset", "offset"),
        ("range(0, GROUPS, TILE)", "range(0, 1, TILE)"),
    ],
    ids=["blocks joined", "taps joined", "one tile"],
)
def test_grouped_convolution(original: str, replacement: str) -> None:
    assert_noticed("ascend_specdec::grouped_convolution", original, replacement)


@pytest.mark.parametrize(
    ("original", "replacement"),
    [
        ("if place == 0:", "if unit == 0:"),
        ("first - WIDTH + p", "first - WIDTH"),
        (", unit, rank, RANK)", ", 0, rank, RANK)"),
    ],
    ids=["anchor lost", "one predecessor", "one gate"],
)
def test_selector_edges(original: str, replacement: str) -> None:
    assert_noticed("ascend_specdec::selector_edges", original, replacement)


@pytest.mark.parametrize(
    ("original", "replacement"),
    [
        (
            "tl.min(tl.where(row == best, order, LANES * 1.0), axis=0)",
            "tl.max(tl.where(row == best, order, -1.0), axis=0)",
        ),
        ("(spot * WIDTH + at) * WIDTH", "spot * WIDTH * WIDTH"),
    ],
    ids=["highest of ties", "walk forgotten"],
)
def test_selector_walk(original: str, replacement: str) -> None:
    assert_noticed("ascend_specdec::selector_walk", original, replacement)
