"""Faults in the kernels of n-gram drafting and of a draft's inputs that their proofs notice."""

from __future__ import annotations

import pytest
from ascend_ops_core.testing.mutants import assert_noticed

pytestmark = pytest.mark.interpreter


@pytest.mark.parametrize(
    ("original", "replacement"),
    [
        ("longer = matched > best", "longer = matched >= best"),
        ("(lanes < length - start) & (lanes >= back - start)", "lanes < length - start"),
        ("limit - length < count, limit - length", "limit < count, limit"),
        ("winner >= SHORTEST", "winner >= 1"),
        ("other=-1)", "other=0)"),
        ("run = tl.where((differs == 0.0) & inside, run, 0.0)", "run = tl.where(inside, run, 0.0)"),
    ],
    ids=["last place", "in front of the row", "limit", "shortest", "fill", "everything equal"],
)
def test_ngrams(original: str, replacement: str) -> None:
    assert_noticed("ascend_specdec::propose_ngrams", original, replacement)


@pytest.mark.parametrize(
    ("original", "replacement"),
    [
        ("tl.where(drafts.to(tl.float32) == 0.0, 0, drafts + 1 - valid)", "drafts + 1 - valid"),
        ("lanes >= 1 - first", "lanes >= 1"),
    ],
    ids=["no drafts", "second program"],
)
def test_prepare_inputs(original: str, replacement: str) -> None:
    assert_noticed("ascend_specdec::prepare_inputs_padded", original, replacement)


@pytest.mark.parametrize(
    ("original", "replacement"),
    [
        ("(token >= 0.0) & ", ""),
        (" & (token < vocabulary.to(tl.float32))", ""),
        ("            last = 0\n", ""),
    ],
    ids=["placeholder", "vocabulary", "discarded"],
)
def test_next_tokens(original: str, replacement: str) -> None:
    assert_noticed("ascend_specdec::next_tokens_padded", original, replacement)


@pytest.mark.parametrize(
    ("original", "replacement"),
    [
        ("full = position >= limit", "full = position > limit"),
        ("slot = tl.where(full, -1, slot)", "slot = slot"),
        ("launch(_next_positions_kernel, requests + 1", "launch(_next_positions_kernel, requests"),
    ],
    ids=["limit", "full cached", "padding"],
)
def test_next_positions(original: str, replacement: str) -> None:
    assert_noticed("ascend_specdec::next_positions", original, replacement)
