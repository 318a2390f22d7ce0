"""Faults in the indexer's kernels that their proofs notice."""

from __future__ import annotations

import pytest
from ascend_ops_core.testing.mutants import assert_noticed

pytestmark = pytest.mark.interpreter


@pytest.mark.parametrize(
    ("original", "replacement"),
    [
        ("tl.where(dots < 0.0, 0.0, dots) * weight", "dots * weight"),
        ("(entry + k)[None, :] < seen[:, None]", "(entry + k)[None, :] < most"),
        ("(k < count)[None, :], score,", "(k < BLOCK)[None, :], score,"),
        ("for piece in range(live, stop):", "for piece in range(live, live):"),
        ("& (t >= done) & (t < left)", "& (t >= done)"),
        ("owner == request) & (t >= done)", "owner >= request) & (t >= done)"),
        ("score = score * scale.to(tl.float32)[None, :]", "pass"),
        ("most % PAGE + BLOCK - 1) // BLOCK", "most % PAGE) // BLOCK"),
        ("heads = tl.where(left < TOKENS, left, TOKENS) * HEADS", "heads = TOKENS * ROWS"),
        ("table_stride + page)", "table_stride)"),
    ],
    ids=[
        "negative dots kept",
        "later entries of the request seen",
        "rows of a page beyond the last entry seen",
        "entries that nobody sees left unwritten",
        "tokens beyond the last one written",
        "requests mixed up",
        "scales dropped",
        "last piece of a page dropped",
        "tokens beyond the last one read",
        "first page read for all",
    ],
)
def test_indexer_scores(original: str, replacement: str) -> None:
    assert_noticed("ascend_attention::indexer_scores", original, replacement)


@pytest.mark.parametrize(
    ("original", "replacement"),
    [
        ("best_entries(scores, visible[part], top_k)", "scores.topk(top_k, dim=-1).indices"),
        ("if most_entries > top_k:", "if most_entries > top_k + 1000:"),
    ],
    ids=["hidden entries selected", "never scored"],
)
def test_select_entries(original: str, replacement: str) -> None:
    assert_noticed("ascend_attention::select_entries", original, replacement)


@pytest.mark.parametrize(
    ("original", "replacement"),
    [
        ("if block >= 0:", "if block >= -1:"),
        ("launch(_quantize_kernel, count,", "launch(_quantize_kernel, count - 1,"),
        ("tl.store(out + columns, rounded_to_int8(q), mask=inside)", "pass"),
        ("to += as_int64(offset) * scale_row_stride", "to += as_int64(offset)"),
        ("tl.max(magnitude(x), axis=0)", "tl.max(x, axis=0)"),
    ],
    ids=[
        "padding written",
        "last row skipped",
        "values not written",
        "scales beside each other",
        "negative values overlooked",
    ],
)
def test_quantize_index_rows(original: str, replacement: str) -> None:
    assert_noticed("ascend_attention::quantize_index_rows", original, replacement)
