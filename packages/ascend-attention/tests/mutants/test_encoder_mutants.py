"""Faults in the kernels of encoder and relative attention that their proofs notice."""

from __future__ import annotations

import pytest
from ascend_ops_core.testing.mutants import assert_noticed

pytestmark = pytest.mark.interpreter


@pytest.mark.parametrize(
    ("original", "replacement"),
    [
        ("seen = own[:, None] & (r < end - at)[None, :]", "seen = (r < end - at)[None, :]"),
        ("seen = own[:, None] & (r < end - at)[None, :]", "seen = own[:, None] & (r < ROWS)"),
        ("(r < end - start)[:, None] &", "(r < ROWS)[:, None] &"),
        ("key_head = head // GROUP", "key_head = 0"),
        ("smaller = (value <= bound)", "smaller = (value < bound)"),
        ("_at_most(ends_ptr, sequences, behind - 1, STEPS)", "first + 1"),
    ],
    ids=[
        "another sequence seen",
        "rows behind a sequence weighted",
        "rows behind a sequence read",
        "first key head for all",
        "one sequence too early",
        "first sequence of a tile alone",
    ],
)
def test_encoder_attention(original: str, replacement: str) -> None:
    assert_noticed("ascend_attention::encoder_attention", original, replacement)


@pytest.mark.parametrize(
    ("original", "replacement"),
    [
        ("* scale + bias", "* scale"),
        ("as_int64(batch) * bias_batch", "0 * bias_batch"),
        ("as_int64(head) * bias_head", "0 * bias_head"),
        ('tl.where(there, 0.0, float("-inf"))', "tl.where(there, 0.0, 0.0)"),
        ("total = total * factor +", "total = total +"),
    ],
    ids=["no bias", "first batch's bias", "first head's bias", "rows behind weighted", "sums"],
)
def test_relative_attention(original: str, replacement: str) -> None:
    assert_noticed("ascend_attention::relative_attention", original, replacement)
