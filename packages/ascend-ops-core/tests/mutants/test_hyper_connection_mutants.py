"""Faults in kernels of residual streams, rotation and scaled sum that proofs notice."""

from __future__ import annotations

import pytest
from ascend_ops_core.testing.mutants import assert_noticed

pytestmark = pytest.mark.interpreter


@pytest.mark.parametrize(
    ("op", "original", "replacement"),
    [
        ("sinkhorn", "for _ in range(1, ITERS):", "for _ in range(2, ITERS):"),
        ("sinkhorn", "logits = tl.where(valid, logits, -1e30)", "pass"),
        ("hc_pre", "at = first + (j * N + k)", "at = first + (k * N + j)"),
        ("hc_head", "for k in tl.static_range(1, N):", "for k in tl.static_range(2, N):"),
        ("hc_post", "+ j * N + k, mask=k < N", "+ k * N + j, mask=k < N"),
        ("hc_post", "chunks = -(-hidden // block)", "chunks = max(hidden // block, 1)"),
        ("attn_res", "score = tl.where(there, score, -1e30)", "pass"),
        ("attn_res", "top = tl.where(last > top, last, top)", "pass"),
        ("attn_res", "tl.sum(share, axis=0) + last_share", "tl.sum(share, axis=0)"),
        ("add_attn_res", "x = (x.to(tl.float32) + y.to(tl.float32)).to(x.dtype)", "pass"),
        ("add_attn_res", "total, mask=inside)", "0 * total, mask=inside)"),
        ("hadamard", "tl.load(x_ptr + here, mask=mask, other=0.0)", "tl.load(x_ptr + here)"),
        ("hadamard", "programs = -(-rows // tile)", "programs = rows // tile"),
        ("hadamard", "z = tl.dot(left, y", "z = tl.dot(0 * left, y"),
        ("muls_add", "total, mask=inside)", "total)"),
        ("muls_add", "programs = -(-x.numel() // block)", "programs = x.numel() // block"),
    ],
)
def test_notices(op: str, original: str, replacement: str) -> None:
    assert_noticed(f"ascend_ops_core::{op}", original, replacement)
