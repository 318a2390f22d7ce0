"""Faults in the kernels of packed rows that their proofs notice."""

from __future__ import annotations

import pytest
from ascend_ops_core.testing.mutants import assert_noticed

pytestmark = pytest.mark.interpreter


@pytest.mark.parametrize(
    ("original", "replacement"),
    [
        ("if (block >= 0) & (offset >= 0):", "if block >= 0:"),
        ("> 0x600000, 1, 0)", "> 0x7FFFFF, 1, 0)"),
        ("mask=g < GROUPS", "mask=g < LINES"),
        ("scales = out + QUANTISED + 2 * ROTARY", "scales = out + QUANTISED + ROTARY"),
        ("inside = at < QUANTISED", "inside = at < QUANTISED + ROTARY"),
    ],
    ids=[
        "padding written",
        "scale always rounded down",
        "scales behind the row",
        "scales at another place",
        "rotated values in a group",
    ],
)
def test_quantize_kv_rows(original: str, replacement: str) -> None:
    assert_noticed("ascend_attention::quantize_kv_rows", original, replacement)
