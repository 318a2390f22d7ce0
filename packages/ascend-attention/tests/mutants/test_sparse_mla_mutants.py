"""Faults in the kernels of sparse MLA and of the selection that their proofs notice."""

from __future__ import annotations

import pytest
from ascend_ops_core.testing.mutants import assert_noticed

pytestmark = pytest.mark.interpreter


@pytest.mark.parametrize(
    ("original", "replacement"),
    [
        ("tl.trans(rope_tile), product,", "0 * tl.trans(rope_tile), product,"),
        ("product * scale + bias[None, :]", "product * scale"),
        ("total = total * tl.exp(peak - higher)", "total = total"),
        ("first = (origin + split * share) * ROWS", "first = origin * ROWS"),
        ("mask=real, other=0.0) - top)", "mask=real, other=0.0) * 0.0)"),
    ],
    ids=[
        "rotated part dropped",
        "mask dropped",
        "sum not rescaled",
        "every split reads all",
        "parts not weighted",
    ],
)
def test_sparse_mla(original: str, replacement: str) -> None:
    assert_noticed("ascend_attention::sparse_mla", original, replacement)


@pytest.mark.parametrize(
    ("original", "replacement"),
    [
        ("head_weights = head_weights * query_scale", "pass"),
        ("seen[part],\n            most_tokens", "seen[part] + 1,\n            most_tokens"),
    ],
    ids=["scales of queries dropped", "later token seen"],
)
def test_select_tokens(original: str, replacement: str) -> None:
    assert_noticed("ascend_attention::select_tokens", original, replacement)
