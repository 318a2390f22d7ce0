"""Faults in the kernels of contexts that ranks share, which their proofs notice."""

from __future__ import annotations

import pytest
from ascend_ops_core.testing.mutants import assert_noticed

pytestmark = pytest.mark.interpreter


@pytest.mark.parametrize(
    ("original", "replacement"),
    [
        ("(as_int64(token) * RANKS + rank) * HEADS", "as_int64(token) * RANKS * HEADS"),
        ("& (d < FILLED)[None, :]", "& (d < WIDTH)[None, :]"),
        ("h * WORDS + (WORDS - 1), lse", "h * WORDS, lse"),
    ],
    ids=["first rank's heads for all", "word left as it was", "logarithm over the values"],
)
def test_pack_attention_states(original: str, replacement: str) -> None:
    assert_noticed("ascend_attention::pack_attention_states", original, replacement)


@pytest.mark.parametrize(
    ("original", "replacement"),
    [
        ("used = mask & (weight > 0.0)[:, None]", "used = mask"),
        ("mask=real, other=0.0) - top)", "mask=real, other=0.0))"),
        ("here = as_int64(part) * rows + first", "here = first"),
    ],
    ids=["garbage of ranks without a row read", "weights not relative", "first rank read for all"],
)
def test_merge_packed_states(original: str, replacement: str) -> None:
    assert_noticed("ascend_attention::merge_packed_states", original, replacement)


@pytest.mark.parametrize(
    ("original", "replacement"),
    [
        ("here = used & (run - turn * RANKS == RANK)", "here = run - turn * RANKS == RANK"),
        ("row = token + (turn - run) * INTERLEAVE", "row = turn * INTERLEAVE"),
        ("(run - turn * RANKS == RANK)", "(run - turn * RANKS == 0)"),
    ],
    ids=["unused places are token 0", "place within a run lost", "another rank's tokens"],
)
def test_local_tokens(original: str, replacement: str) -> None:
    assert_noticed("ascend_attention::local_tokens", original, replacement)
