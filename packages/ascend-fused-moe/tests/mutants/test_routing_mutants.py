"""Faults in the routers' kernels that their proof notices."""

from __future__ import annotations

import pytest
from ascend_ops_core.testing.mutants import assert_noticed

pytestmark = pytest.mark.interpreter


@pytest.mark.parametrize(
    ("original", "replacement"),
    [
        ("programs = -(-rows // tile)", "programs = rows // tile"),
        ('ranked = tl.where(inside, ranked, float("-inf"))', "pass"),
        ("number[None, :], BLOCK), axis=1)", "-number[None, :], 0.0), axis=1) * -1.0"),
        ("ranked = tl.where(ranked >= _LOWEST, ranked, _LOWEST)", "pass"),
        ("tl.where(taken, scores, 0.0)", "tl.where(taken, ranked, 0.0)"),
        ("small = added == 0.0", "small = added < 0.0"),
        ("tl.store(weights_ptr + out, weights * scale, mask=chosen)", "pass"),
        ("chosen = (r < rows - first)[:, None] & ", "chosen = "),
    ],
    ids=[
        "tail skipped",
        "padding chosen",
        "higher id of equal ones",
        "NaN ranked",
        "biased weights",
        "digits lost",
        "weights unwritten",
        "store unmasked",
    ],
)
def test_topk_routing(original: str, replacement: str) -> None:
    assert_noticed("ascend_fused_moe::topk_routing", original, replacement)


@pytest.mark.parametrize(
    ("original", "replacement"),
    [
        (
            "tl.store(weights_ptr + out, weights * scale, mask=choice < TOP_K)",
            "tl.store(weights_ptr + out, weights * scale)",
        ),
        ("as_int64(token) * table_stride", "as_int64(token) * TOP_K"),
        ("weights = tl.where(choice < TOP_K, weights, 0.0)", "pass"),
        ("tl.store(ids_ptr + out, ids.to(tl.int64), mask=choice < TOP_K)", "pass"),
    ],
    ids=["store unmasked", "stride ignored", "padding in the sum", "ids unwritten"],
)
def test_hash_routing(original: str, replacement: str) -> None:
    assert_noticed("ascend_fused_moe::hash_routing", original, replacement)
