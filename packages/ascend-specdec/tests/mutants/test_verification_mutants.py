"""Faults in the kernels that draw what replaces a draft that their proofs notice."""

from __future__ import annotations

import pytest
from ascend_ops_core.testing.mutants import assert_noticed

pytestmark = pytest.mark.interpreter


@pytest.mark.parametrize(
    ("original", "replacement"),
    [
        ("again = tl.where(winner > 0.0, 0, VOCABULARY)", "again = 0"),
        ("best_start = tl.where(ahead, start * 1.0, best_start)", "best_start = best_start"),
        ("most_start = tl.where(larger, start * 1.0, most_start)", "most_start = most_start"),
    ],
    ids=["nothing left", "tile of the best", "tile of the most likely"],
)
def test_recovered_tokens(original: str, replacement: str) -> None:
    assert_noticed("ascend_specdec::recovered_tokens", original, replacement)


def test_accepted_in_block() -> None:
    assert_noticed(
        "ascend_specdec::accepted_in_block",
        "masses += tl.where(left > 0.0, left, 0.0)",
        "masses += left",
    )
