"""Faults in the kernel that maps experts which its proof notices."""

from __future__ import annotations

import pytest
from ascend_ops_core.testing.mutants import assert_noticed

pytestmark = pytest.mark.interpreter


@pytest.mark.parametrize(
    ("original", "replacement"),
    [
        ("programs = -(-rows // tokens) if top_k else 0", "programs = rows // tokens"),
        ("if (logical >= 0) & (logical < experts):", "if logical < experts:"),
        ("if (logical >= 0) & (logical < experts):", "if logical >= 0:"),
        ("if (place >= 0) & counted:", "if place >= 0:"),
        ("if (place >= 0) & counted:", "if counted:"),
        ("phase = (token + offset) % period", "phase = token % period"),
        ("ids = ids_ptr + token * row_stride", "ids = ids_ptr + token * TOP_K"),
        ("mask=choice < TOP_K)", "mask=choice < CHOICES)"),
        ("tl.where(lanes < 1, 1, 0), mask", "tl.where(lanes < 1, 2, 0), mask"),
    ],
    ids=[
        "tail skipped",
        "negative id read",
        "id beyond the table read",
        "padding counted",
        "no place counted",
        "offset ignored",
        "stride ignored",
        "store unmasked",
        "counted twice",
    ],
)
def test_map_to_physical_and_record(original: str, replacement: str) -> None:
    assert_noticed("ascend_fused_moe::map_to_physical_and_record", original, replacement)
