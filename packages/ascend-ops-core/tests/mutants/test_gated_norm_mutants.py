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
        (
            "if GATED and not GATE_FIRST:\n            y",
            "if GATED and not GATE_FIRST:\n            z",
        ),
        ("(x if SIGMOID else x * z)", "(x * z)"),
    ],
    ids=["tail skipped", "group dropped", "gate dropped", "sigmoid"],
)
def test_rms_norm_gated(original: str, replacement: str) -> None:
    assert_noticed("ascend_ops_core::rms_norm_gated", original, replacement)


@pytest.mark.parametrize(
    ("original", "replacement"),
    [
        ("scale = tl.max(largest, axis=0) / 127.0", "scale = tl.max(largest, axis=0) / 128.0"),
        ("nearest_int8(y / tl.where(scale > 0, scale, 1.0))", "(y / scale).to(tl.int8)"),
        ("programs = -(-count // tile)", "programs = count // tile"),
    ],
    ids=["scale", "cut instead of rounded", "tail skipped"],
)
def test_rms_norm_dynamic_quant(original: str, replacement: str) -> None:
    assert_noticed("ascend_ops_core::rms_norm_dynamic_quant", original, replacement)
