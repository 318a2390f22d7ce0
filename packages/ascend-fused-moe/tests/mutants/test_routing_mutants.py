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
        ("return scores, tl.where(ranked >= LOWEST, ranked, LOWEST)", "return scores, ranked"),
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


@pytest.mark.parametrize(
    ("original", "replacement"),
    [
        ("score = score + tl.max(others, axis=1)", "pass"),
        ("score = tl.where(score >= LOWEST, score, LOWEST)", "pass"),
        ("group_number[None, :], GROUP_BLOCK), axis=1", "-group_number[None, :], 0.0), axis=1"),
        ("allowed = tl.where(member, 1.0, allowed)", "allowed = tl.where(member, 1.0, 1.0)"),
        (
            "within = tl.where(member[None, :], ranked,",
            "within = tl.where(member[None, :], scores,",
        ),
        ("(number[None, :] < low + SIZE)", "(number[None, :] <= low + SIZE)"),
        ("for _ in range(TOP_GROUPS)", "for _ in range(1)"),
    ],
    ids=[
        "one of two",
        "sum of the lowest",
        "higher group of equal ones",
        "no limit",
        "groups without bias",
        "neighbour taken",
        "one group",
    ],
)
def test_grouped_topk_routing(original: str, replacement: str) -> None:
    assert_noticed("ascend_fused_moe::grouped_topk_routing", original, replacement)
