"""Faults in the kernel of paged attention that its proofs notice."""

from __future__ import annotations

import pytest
from ascend_ops_core.testing.mutants import assert_noticed

pytestmark = pytest.mark.interpreter


@pytest.mark.parametrize(
    ("original", "replacement"),
    [
        ("(r < context - start)[:, None] &", "(r < ROWS)[:, None] &"),
        ("tl.load(table + column)", "tl.load(table)"),
        ("seen = seen & own[:, None]", "seen = seen"),
        ("total = total * factor +", "total = total +"),
        ("summed * factor[:, None] + product", "summed + product"),
        ("key_head = head // GROUP", "key_head = 0"),
        ("> position[:, None] - WINDOW", ">= position[:, None] - WINDOW"),
        ("tl.where(split == 0, total + 1.0, total)", "total"),
        ("(total > 0.0) & (position >= 0)", "total > 0.0"),
    ],
    ids=[
        "rows behind the context read",
        "first block read for all",
        "another request seen",
        "sums of earlier tiles not rescaled",
        "values of earlier tiles not rescaled",
        "first key head for all",
        "a window of one more",
        "a sink without weight",
        "padding has a logarithm",
    ],
)
def test_paged_attention(original: str, replacement: str) -> None:
    assert_noticed("ascend_attention::paged_attention", original, replacement)
