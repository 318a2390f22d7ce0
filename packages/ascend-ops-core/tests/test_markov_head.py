"""The Markov head's step against loops in Python."""

from __future__ import annotations

import pytest
import torch
from ascend_ops_core.errors import InvalidInputError
from ascend_ops_core.ops.markov_head import markov_logits


@pytest.mark.oracle("ascend_ops_core::markov_logits", "loops in Python, in float64")
@pytest.mark.parametrize(("rows", "columns", "inner"), [(0, 3, 2), (1, 1, 1), (3, 7, 5)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_equals_loops(rows: int, columns: int, inner: int, dtype: torch.dtype) -> None:
    torch.manual_seed(rows)
    vocabulary = columns + 2
    base = torch.randn(rows, columns).to(dtype)
    tokens = torch.randint(0, vocabulary, (rows,), dtype=torch.int32)
    embedding = torch.randn(vocabulary, inner).to(dtype)
    projection = torch.randn(columns, inner).to(dtype)
    got = markov_logits(base, tokens, embedding, projection, 0.5)
    assert got.dtype == torch.float32
    for r in range(rows):
        for v in range(columns):
            total = float(base[r, v]) + 0.5 * sum(
                float(embedding[tokens[r], k]) * float(projection[v, k]) for k in range(inner)
            )
            assert float(got[r, v]) == pytest.approx(total, abs=1e-5)


def test_bad_input_is_refused() -> None:
    with pytest.raises(InvalidInputError, match="projection of shape"):
        markov_logits(
            torch.zeros(1, 4), torch.zeros(1, dtype=torch.int32), torch.zeros(5, 2),
            torch.zeros(5, 2),
        )  # fmt: skip
