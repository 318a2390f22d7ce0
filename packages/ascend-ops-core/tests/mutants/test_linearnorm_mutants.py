"""Faults in the kernels of split, norm and rotation that their proofs notice."""

from __future__ import annotations

import pytest
from ascend_ops_core.testing.mutants import assert_noticed

pytestmark = pytest.mark.interpreter


@pytest.mark.parametrize(
    ("op", "original", "replacement"),
    [
        ("split_qkv_rmsnorm_rope", "qkv_ptr + Q_HEADS * q_step", "qkv_ptr + Q_HEADS * dim"),
        ("split_qkv_rmsnorm_rope", "k_ptr + KV_HEADS * dim", "k_ptr"),
        ("split_qkv_rmsnorm_rope", "qkv_ptr + dim", "qkv_ptr"),
        ("split_qkv_rmsnorm_rope", "-(-tokens // taken))", "tokens // taken)"),
        ("split_qkv_rmsnorm_mrope", "sections, interleaved)", "sections, not interleaved)"),
        ("split_qkv_tp_variance", "of_key / REPLICAS", "of_key"),
        ("split_qkv_tp_variance", "programs = -(-tokens // tile)", "programs = tokens // tile"),
        ("split_qkv_tp_apply", "tl.load(sums + tokens)", "tl.load(sums)"),
        ("split_qkv_tp_apply", "tl.load(sums + tokens + t", "tl.load(sums + t"),
        ("split_qkv_tp_apply", "totals[1] * head_dim", "totals[0] * head_dim"),
    ],
)
def test_linearnorm(op: str, original: str, replacement: str) -> None:
    assert_noticed(f"ascend_ops_core::{op}", original, replacement)
