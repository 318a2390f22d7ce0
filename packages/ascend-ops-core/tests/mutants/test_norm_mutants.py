"""Faults in the norms' kernels that their proof notices."""

from __future__ import annotations

import pytest
from ascend_ops_core.testing.mutants import assert_noticed

pytestmark = pytest.mark.interpreter

_STORE = "tl.store(out_ptr + here, y.to(out_ptr.dtype.element_ty), mask=mask)"


@pytest.mark.parametrize(
    ("original", "replacement"),
    [
        ("programs = -(-count // tile)", "programs = count // tile"),
        (
            "summed(tile, other, columns[None, :], mask,",
            "summed(tile, other, columns[None, :], r[:, None] >= 0,",
        ),
        (
            "here = first * WIDTH + r[:, None] * WIDTH + columns[None, :]",
            "here = first * WIDTH + r[:, None] * WIDTH + (WIDTH - 1 - columns)[None, :]",
        ),
        (_STORE, _STORE.replace(", mask=mask", "")),
    ],
    ids=["tail skipped", "load unmasked", "index swapped", "store unmasked"],
)
def test_rms_norm(original: str, replacement: str) -> None:
    assert_noticed("ascend_ops_core::rms_norm", original, replacement)


@pytest.mark.parametrize(
    ("op", "original", "replacement"),
    [
        (
            "add_rms_norm",
            "tl.store(sum_ptr + here, x.to(sum_ptr.dtype.element_ty), mask=mask)",
            "pass",
        ),
        ("layer_norm", "x = tl.where(inside[None, :], x, 0.0)", "pass"),
        ("gemma_rms_norm", "weight = weight + OFFSET", "pass"),
        ("rms_norm_bias", "y = y + bias[None, :]", "pass"),
    ],
)
def test_variants(op: str, original: str, replacement: str) -> None:
    assert_noticed(f"ascend_ops_core::{op}", original, replacement)
