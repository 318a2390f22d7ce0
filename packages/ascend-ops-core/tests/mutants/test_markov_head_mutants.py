"""Faults in the Markov head's kernel that its proof notices."""

from __future__ import annotations

import pytest
from ascend_ops_core.testing.mutants import assert_noticed

pytestmark = pytest.mark.interpreter


@pytest.mark.parametrize(
    ("original", "replacement"),
    [
        ("range(0, K, BK)", "range(0, BK, BK)"),
        ("base + total * scale", "base + total"),
        ("inside = k < K - start", "inside = k < BK"),
    ],
    ids=["one tile", "scale lost", "tail unmasked"],
)
def test_markov_logits(original: str, replacement: str) -> None:
    assert_noticed("ascend_ops_core::markov_logits", original, replacement)
