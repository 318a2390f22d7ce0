"""Faults in the batch-invariant kernels that their proofs notice."""

from __future__ import annotations

import pytest
from ascend_ops_core.testing.mutants import assert_noticed

pytestmark = pytest.mark.interpreter


@pytest.mark.parametrize(
    ("op", "original", "replacement"),
    [
        ("mm", "real = r < rows - first_row", "real = r >= 0"),
        ("mm", "range(0, K, BK)", "range(0, K - K % BK, BK)"),
        ("mm", "batches * -(-rows // bm) *", "batches * (rows // bm) *"),
        ("bmm", "(batch) * y_batch", "(batch) * 0"),
        ("addmm", "added = added * beta\n            total = total + added\n", "total += added\n"),
        ("linear", "total = total + added[None, :]", "total = total"),
        ("mean", "(columns < WIDTH)[None, :]", "(columns < WIDTH - 1)[None, :]"),
        ("mean", "(r < WIDTH - start)[:, None]", "(r >= 0)[:, None]"),
        ("mean", "strips = -(-inner // block)", "strips = inner // block"),
        ("rms_norm", "scale[:, None] * weight[None, :]", "scale[:, None]"),
        ("rms_norm", "squares += x * x", "squares = x * x"),
        ("softmax", "sums += tl.exp(x - top[:, None])", "sums = tl.exp(x - top[:, None])"),
        ("softmax", "programs = -(-rows.shape[0] // tile)", "programs = rows.shape[0] // tile"),
    ],
)
def test_fault_is_noticed(op: str, original: str, replacement: str) -> None:
    assert_noticed(f"ascend_ops_core::{op}_batch_invariant", original, replacement)
