"""Faults in the rotary kernels that their proofs notice."""

from __future__ import annotations

import pytest
from ascend_ops_core.testing.mutants import assert_noticed

pytestmark = pytest.mark.interpreter


@pytest.mark.parametrize(
    ("original", "replacement"),
    [
        (
            "return first * cos - second * sin, second * cos + first * sin",
            "return first * cos - second * sin, second * cos - first * sin",
        ),
        ("WIDTH - 2 * PAIRS if AT_END else 0", "0"),
        ("        sin = -sin\n", "        sin = sin\n"),
        (
            'tile.programs,\n    }\n    constants = {\n        "Q_COUNT"',
            'tile.programs - 1,\n    }\n    constants = {\n        "Q_COUNT"',
        ),
    ],
    ids=["turned back", "wrong end", "never inverse", "tail skipped"],
)
def test_apply_rotary(original: str, replacement: str) -> None:
    assert_noticed("ascend_ops_core::apply_rotary", original, replacement)


def test_apply_rotary_qk() -> None:
    original = "for head in range(0, K_COUNT, K_HEADS)"
    assert_noticed("ascend_ops_core::apply_rotary_qk", original, "for head in range(0, 0, K_HEADS)")


@pytest.mark.parametrize(
    ("original", "replacement"),
    [
        ("squares += tl.sum(kept * kept, axis=2)", "squares = squares"),
        ("kept = kept * scale", "kept = kept"),
    ],
    ids=["part of the norm", "part not scaled"],
)
def test_rms_norm_rotary(original: str, replacement: str) -> None:
    assert_noticed("ascend_ops_core::rms_norm_rotary", original, replacement)


@pytest.mark.parametrize(
    ("name", "original", "replacement"),
    [
        ("gather_cos_sin", "_row(sin_ptr, position", "_row(cos_ptr, position"),
        ("mrope_cos_sin", "positions_ptr + 2 * tokens + unit", "positions_ptr + tokens + unit"),
        ("mrope_cos_sin", "(turn == 2) & (columns < 3 * WIDTH)", "turn == 0"),
    ],
)
def test_rotary_table(name: str, original: str, replacement: str) -> None:
    assert_noticed(f"ascend_ops_core::{name}", original, replacement)
