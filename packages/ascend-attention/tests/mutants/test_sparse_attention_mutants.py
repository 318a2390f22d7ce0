"""Faults in the attention and row kernels that their proofs notice."""

from __future__ import annotations

import pytest
from ascend_ops_core.testing.mutants import assert_noticed, mutated

pytestmark = pytest.mark.interpreter

OPERATOR = "ascend_attention::sparse_attention"


@pytest.mark.parametrize(
    ("original", "replacement"),
    [
        ("total = tl.exp(sink - peak)", "total = tl.zeros((TAKEN,), tl.float32)"),
        ("total = tl.exp(sink - top)", "total = tl.zeros((TAKEN,), tl.float32)"),
        ("weight = tl.exp(tl.load(peak_ptr + here + h, mask=real, other=0.0) - top)", "weight = 1"),
        ("total = total * tl.exp(peak - higher)", "total = total"),
        ("first = (origin + split * share) * ROWS", "first = origin * ROWS"),
        ("product * scale + bias[None, :]", "product * scale"),
    ],
    ids=[
        "sink dropped",
        "sink dropped in the merge",
        "parts not weighted",
        "sum not rescaled",
        "every split reads all",
        "mask dropped",
    ],
)
def test_sparse_attention(original: str, replacement: str) -> None:
    assert_noticed(OPERATOR, original, replacement)


@pytest.mark.parametrize(
    ("original", "replacement"),
    [
        ("wanted = wanted & (tl.load(valid_ptr + i) != 0)", "wanted = wanted"),
        ("wanted = (block >= 0) & (offset >= 0)", "wanted = block >= 0"),
        ("high = tl.where(highest > high, highest, high)", "high = high"),
        ("high // ROWS - first + 1)", "high // ROWS - first)"),
    ],
    ids=["invalid rows read", "padding read", "no span", "last tile skipped"],
)
def test_gathering(original: str, replacement: str) -> None:
    # The package is imported anew as well, since it holds functions of the module.
    from ascend_attention.ops.sparse_attention.kernels import gathering

    kept = '"""Sparse attention in Triton'
    with mutated(gathering, original, replacement):
        assert_noticed(OPERATOR, kept, kept)


@pytest.mark.parametrize(
    ("name", "original", "replacement"),
    [
        (
            "gather_rows",
            "if (block >= 0) & (offset >= 0):\n                row",
            "if block >= 0:\n                row",
        ),
        (
            "write_rows",
            "if (block >= 0) & (offset >= 0):\n            to",
            "if offset >= 0:\n            to",
        ),
        ("locate_rows", "within = (at >= 0) & (at < PIECE)", "within = at < PIECE"),
        ("locate_rows", "column + 1, column))", "column, column))"),
    ],
    ids=["padding read", "padding written", "second piece of the table", "quotient not mended"],
)
def test_paged_rows(name: str, original: str, replacement: str) -> None:
    assert_noticed(f"ascend_attention::{name}", original, replacement)
