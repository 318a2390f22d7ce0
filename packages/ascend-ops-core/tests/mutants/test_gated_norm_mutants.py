"""Faults in the kernels of gated and quantising norms that their proofs notice."""

from __future__ import annotations

import pytest
from ascend_ops_core.testing.mutants import assert_noticed

pytestmark = pytest.mark.interpreter


@pytest.mark.parametrize(
    ("original", "replacement"),
    [
        ("programs = -(-count // tile) * groups", "programs = count // tile * groups"),
        ("start = (unit % GROUPS) * WIDTH\n        if", "start = 0\n        if"),
        ("if GATED and not GATE_FIRST:\n            y = y * factor", "if False:\n            pass"),
    ],
    ids=["tail skipped", "group dropped", "gate dropped"],
)
def test_rms_norm_gated(original: str, replacement: str) -> None:
    assert_noticed("ascend_ops_core::rms_norm_gated", original, replacement)


@pytest.mark.parametrize(
    ("original", "replacement"),
    [
        ("scale = tl.max(largest, axis=0) / 127.0", "scale = tl.max(largest, axis=0) / 128.0"),
        ("((values + 12582912.0) - 12582912.0)", "values"),
        ("programs = -(-count // tile)", "programs = count // tile"),
    ],
    ids=["scale", "cut instead of rounded", "tail skipped"],
)
def test_rms_norm_dynamic_quant(original: str, replacement: str) -> None:
    assert_noticed("ascend_ops_core::rms_norm_dynamic_quant", original, replacement)
