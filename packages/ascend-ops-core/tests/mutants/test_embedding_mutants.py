"""Faults in the vocabulary range's kernel that its proof notices."""

from __future__ import annotations

import pytest
from ascend_ops_core.testing.mutants import assert_noticed

pytestmark = pytest.mark.interpreter


@pytest.mark.parametrize(
    ("original", "replacement"),
    [
        ("programs = -(-count // block)", "programs = count // block"),
        ("in_org, 0, tl.where(in_added, 0, 1)", "in_org, 0, 1"),
        ("(ids < org_end)", "(ids <= org_end)"),
        ("missing.to(tl.int8), mask=real", "missing.to(tl.int8)"),
    ],
    ids=["tail skipped", "added forgotten", "end included", "store unmasked"],
)
def test_mask_vocab_range(original: str, replacement: str) -> None:
    assert_noticed("ascend_ops_core::mask_vocab_range", original, replacement)
