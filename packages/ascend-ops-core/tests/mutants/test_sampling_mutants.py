"""Faults in the sampling kernels that their proofs notice."""

from __future__ import annotations

import pytest
from ascend_ops_core.testing.mutants import assert_noticed

pytestmark = pytest.mark.interpreter


@pytest.mark.parametrize(
    ("original", "replacement"),
    [
        ("if t < length - first:", "if t < length - first - 1:"),
        ("if (token >= 0) & (token < vocabulary):", "if token < vocabulary:"),
        ("(token >= 0) & (token < vocabulary)", "(token >= 0) & (token <= vocabulary)"),
        ("parts = -(-length // part)", "parts = length // part"),
    ],
    ids=["last token skipped", "negative ids counted", "padding counted", "tail skipped"],
)
def test_token_bin_counts(original: str, replacement: str) -> None:
    assert_noticed("ascend_ops_core::token_bin_counts_and_mask", original, replacement)


@pytest.mark.parametrize(
    ("original", "replacement"),
    [
        ("blocks = -(-vocabulary // block)", "blocks = max(1, vocabulary // block)"),
        ("prompt + counts > 0", "counts > 0"),
        ("element_ty), mask=inside)", "element_ty))"),
        ("tl.where(counts > 0, presence, 0.0)", "presence * counts"),
    ],
    ids=["tail skipped", "prompt forgotten", "store unmasked", "presence counted"],
)
def test_penalties(original: str, replacement: str) -> None:
    assert_noticed("ascend_ops_core::apply_penalties", original, replacement)


@pytest.mark.parametrize(
    ("original", "replacement"),
    [
        ("(k > 0) & (k < VOCABULARY)", "k < VOCABULARY"),
        ("tl.where(count == k, middle, high)", "tl.where(count > k, middle, high)"),
        ("bits = key ^ ((key >> 31) & 0x7FFFFFFF)", "bits = key"),
        ("last = tl.where(nucleus & (quota < equal), VOCABULARY - 1, 0)", "last = first"),
        ("mask=lanes < VOCABULARY - start)\n\n\ndef", ")\n\n\ndef"),
    ],
    ids=["k of 0 taken", "exit too late", "negative unordered", "ties all kept", "store unmasked"],
)
def test_top_k_top_p(original: str, replacement: str) -> None:
    assert_noticed("ascend_ops_core::top_k_top_p", original, replacement)


@pytest.mark.parametrize(
    ("original", "replacement"),
    [
        ("if row >= 0:", "if row >= -1:"),
        ("tl.where(exponent < 31, power, -(1 << 31))", "power"),
        ("mask=inside)\n\n\ndef", ")\n\n\ndef"),
    ],
    ids=["padding written", "last bit wrong", "store unmasked"],
)
def test_grammar(original: str, replacement: str) -> None:
    assert_noticed("ascend_ops_core::apply_grammar_bitmask", original, replacement)


@pytest.mark.parametrize(
    ("original", "replacement"),
    [
        ("mask=inside, other=0.0)", "mask=inside, other=float('nan'))"),
        ("range(0, VOCABULARY, BLOCK)", "range(0, VOCABULARY - BLOCK + 1, BLOCK)"),
    ],
    ids=["tail counted", "tail skipped"],
)
def test_num_nans(original: str, replacement: str) -> None:
    assert_noticed("ascend_ops_core::num_nans", original, replacement)


@pytest.mark.parametrize(
    ("original", "replacement"),
    [
        ("mask=lanes < custom - start,", "mask=inside,"),
        ("tl.store(valid_row, 1)", "tl.store(valid_row, 0)"),
        ("valid.to(tl.int8), mask=inside)", "valid.to(tl.int8))"),
    ],
    ids=["custom ids unmasked", "sampled invalid", "store unmasked"],
)
def test_logprob_token_ids(original: str, replacement: str) -> None:
    assert_noticed("ascend_ops_core::logprob_token_ids", original, replacement)
