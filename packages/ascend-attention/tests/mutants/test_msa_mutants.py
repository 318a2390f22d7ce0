"""Faults in the kernels of MiniMax-M3's attention that their proofs notice."""

from __future__ import annotations

import pytest
from ascend_ops_core.testing.mutants import assert_noticed

pytestmark = pytest.mark.interpreter


@pytest.mark.parametrize(
    ("original", "replacement"),
    [
        ("seen = key[None, :] <=", "seen = key[None, :] - 1.0 <="),
        ("number < INIT_BLOCKS, _INIT", "number < 0, _INIT"),
        ("behind_it < LOCAL_BLOCKS", "behind_it <= LOCAL_BLOCKS"),
        ("number = first_block + column * block_stride", "number = first_block + column"),
        ("least - LATEST - first_block", "most - LATEST - first_block"),
        ("(reach < least), reach, least", "(reach < least), least, least"),
    ],
    ids=[
        "later keys seen",
        "init dropped",
        "one more local",
        "no stride",
        "all see what one sees",
        "first query for all",
    ],
)
def test_block_scores(original: str, replacement: str) -> None:
    assert_noticed("ascend_attention::block_scores", original, replacement)


@pytest.mark.parametrize(
    ("original", "replacement"),
    [
        ("scores = tl.where(ids == number[:, None], float(\"-inf\"), scores)", "pass"),
        ("tl.min(tl.where(scores == top[:, None], ids, _NO_BLOCK), axis=1)",
         "tl.max(tl.where(scores == top[:, None], ids, -1), axis=1)"),
        ("(ids >= 0) & (scores > float(\"-inf\"))", "(scores > float(\"-inf\"))"),
    ],
    ids=["taken again", "higher number first", "unused candidate taken"],
)  # fmt: skip
def test_best_blocks(original: str, replacement: str) -> None:
    assert_noticed("ascend_attention::best_blocks", original, replacement)


@pytest.mark.parametrize(
    ("original", "replacement"),
    [
        ("row_number < left.to(tl.float32)", "row_number <= left.to(tl.float32)"),
        ("total = total * factor + tl", "total = total + tl"),
        ("first = split * share", "first = 0 * share"),
        ("group = at_group - token * GROUPS", "group = 0"),
    ],
    ids=["later key seen", "sum not rescaled", "splits overlap", "first head for all"],
)
def test_block_sparse_attention(original: str, replacement: str) -> None:
    assert_noticed("ascend_attention::block_sparse_attention", original, replacement)
