"""Faults in the kernels of split, norm and rotation that their proofs notice."""

from __future__ import annotations

import pytest
from ascend_ops_core.testing.mutants import assert_noticed

pytestmark = pytest.mark.interpreter


@pytest.mark.parametrize(
    ("op", "original", "replacement"),
    [
        ("split_qkv_rmsnorm_rope", "row = row + Q_HEADS * q_step", "row = row + Q_HEADS * dim"),
        ("split_qkv_rmsnorm_rope", "row + KV_HEADS * dim, value_ptr", "row, value_ptr"),
        ("split_qkv_rmsnorm_rope", "copy_heads(row + dim, gate", "copy_heads(row, gate"),
        ("split_qkv_rmsnorm_mrope", "c < TIMES + HEIGHTS, cos_h", "c < HEIGHTS, cos_h"),
        ("split_qkv_rmsnorm_mrope", "tl.where(within == 1, third", "tl.where(within == 2, third"),
        ("split_qkv_tp_variance", "of_key / REPLICAS", "of_key"),
        ("split_qkv_tp_variance", "programs = -(-tokens // tile)", "programs = tokens // tile"),
        ("split_qkv_tp_apply", "sums_ptr + programs + token", "sums_ptr + token"),
        ("split_qkv_tp_apply", "totals[1] * head_dim", "totals[0] * head_dim"),
    ],
)
def test_linearnorm(op: str, original: str, replacement: str) -> None:
    assert_noticed(f"ascend_ops_core::{op}", original, replacement)
