"""Faults in the grouped product's kernel that its proofs notice."""

from __future__ import annotations

import pytest
from ascend_ops_core.testing.mutants import assert_noticed

pytestmark = pytest.mark.interpreter


@pytest.mark.parametrize(
    ("original", "replacement"),
    [
        ("programs = count * -(-columns // tile_columns)", "programs = count"),
        (
            "for first_row in range(start, end, BM):",
            "for first_row in range(start, start + 1, BM):",
        ),
        (
            "for first_row in range(start, end, BM):",
            "for first_row in range(start, start + BM, BM):",
        ),
        ("r < end - first_row", "r < BM"),
        ("mask=group > 0, other=0", "mask=group > 1, other=0"),
        ("ends = groups if cumulative else groups.cumsum(0)", "ends = groups"),
        ("mask=real[:, None] & wanted[None, :],", "mask=real[:, None],"),
        ("inside = k < K - inner", "inside = k < BK"),
        ("total = tl.dot(x, tl.trans(w), total,", "total = tl.dot(x, tl.trans(w), total * 0.0,"),
        ("bias_ptr + as_int64(group) * N", "bias_ptr + as_int64(group) * 0"),
        ("as_int64(first_row) * x_row", "as_int64(first_row) * K"),
    ],
    ids=[
        "columns skipped",
        "empty groups computed",
        "one tile of rows",
        "rows of the next group",
        "start ignored",
        "counts as ends",
        "store unmasked",
        "channels beyond the row",
        "last channels alone",
        "bias of the first group",
        "stride ignored",
    ],
)
def test_grouped_matmul(original: str, replacement: str) -> None:
    assert_noticed("ascend_fused_moe::grouped_matmul", original, replacement)
