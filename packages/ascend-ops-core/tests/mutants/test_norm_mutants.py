"""Faults in the norms' kernels that their proof notices."""

from __future__ import annotations

import pytest
from ascend_ops_core.testing.mutants import assert_noticed

pytestmark = pytest.mark.interpreter


@pytest.mark.parametrize(
    ("original", "replacement"),
    [
        ("programs = -(-rows.shape[0] // tile)", "programs = rows.shape[0] // tile"),
        ("tl.load(tile, mask=mask, other=0.0)", "tl.load(tile)"),
        (
            "+ r[:, None] * WIDTH + columns[None, :]",
            "+ r[:, None] * WIDTH + (WIDTH - 1 - columns)[None, :]",
        ),
        ("y.to(out_ptr.dtype.element_ty), mask=mask)", "y.to(out_ptr.dtype.element_ty))"),
    ],
    ids=["tail skipped", "load unmasked", "index swapped", "store unmasked"],
)
def test_rms_norm(original: str, replacement: str) -> None:
    assert_noticed("ascend_ops_core::rms_norm", original, replacement)
