"""Faults in the activations' kernels that their proofs notice."""

from __future__ import annotations

import pytest
from ascend_ops_core.testing.mutants import assert_noticed

pytestmark = pytest.mark.interpreter


@pytest.mark.parametrize(
    ("original", "replacement"),
    [
        ("programs = -(-rows // tile) * -(-width // block)", "programs = rows // tile"),
        ("gate = tl.where(gate > limit, limit, gate)", "gate = tl.where(gate > limit, 0.0, gate)"),
        ("up = tl.where(up < -limit, -limit, up)", "up = up"),
        (
            "y.to(out_ptr.dtype.element_ty), mask=mask)\n\n\n@triton.jit\ndef _quick",
            "y.to(out_ptr.dtype.element_ty))\n\n\n@triton.jit\ndef _quick",
        ),
    ],
    ids=["tail skipped", "gate lost", "up limited once", "store unmasked"],
)
def test_silu_and_mul_with_clamp(original: str, replacement: str) -> None:
    assert_noticed("ascend_ops_core::silu_and_mul_with_clamp", original, replacement)


@pytest.mark.parametrize(
    ("original", "replacement"),
    [
        ("gate, up = tl.split(", "up, gate = tl.split("),
        ("* (up + bias)", "* up"),
    ],
    ids=["gate and up swapped", "bias dropped"],
)
def test_swiglu_oai_and_mul(original: str, replacement: str) -> None:
    assert_noticed("ascend_ops_core::swiglu_oai_and_mul", original, replacement)


def test_swiglustep_and_mul() -> None:
    original = "gate, up = limited_gate_up(gate, up, limit, True)\n            y = gate"
    replacement = "y = gate"
    assert_noticed("ascend_ops_core::swiglustep_and_mul", original, replacement)


@pytest.mark.parametrize(
    ("original", "replacement"),
    [
        ("tl.where(t2 < 0.04, near, far)", "tl.where(t2 < 4.0, near, far)"),
        ("up = _bounded(up, linear_beta)", "up = _bounded(up, beta)"),
        ("y = _bounded(gate, beta) /", "y = gate /"),
    ],
    ids=["series too far", "bound of the gate", "gate unbounded"],
)
def test_situ_and_mul(original: str, replacement: str) -> None:
    assert_noticed("ascend_ops_core::situ_and_mul", original, replacement)


def test_quick_gelu() -> None:
    original = "mask = offsets < elements - first"
    assert_noticed("ascend_ops_core::quick_gelu", original, "mask = offsets < elements")


@pytest.mark.parametrize(
    ("original", "replacement"),
    [
        ("read = (r < used - first)", "read = (r < rows - first)"),
        ("groups_ptr + groups - 1", "groups_ptr"),
        (
            "values = nearest_int8(y / divisor[:, None])",
            "values = (y / divisor[:, None]).to(tl.int8)",
        ),
        ("width = tl.where(unit < used, WIDTH, 0)", "width = WIDTH"),
        ("written = (r < rows - first)[:, None]", "written = (r >= 0)[:, None]"),
    ],
    ids=["groups ignored", "first sum", "cut off", "wide rows read", "tail overwritten"],
)
def test_swiglu_quant(original: str, replacement: str) -> None:
    assert_noticed("ascend_ops_core::swiglu_quant", original, replacement)


@pytest.mark.parametrize(
    ("original", "replacement"),
    [
        ("ends <= unit, 1, 0", "ends < unit, 1, 0"),
        (
            "tl.where(group < groups, tl.load(activation_scale_ptr + unit), 0.0)",
            "tl.load(activation_scale_ptr + unit)",
        ),
        ("tl.load(weights + WIDTH + columns", "tl.load(weights + columns"),
        ("width = tl.where(group < groups, WIDTH, 0)", "width = WIDTH"),
        (
            "return gate * of_gate * factor, up * of_up * factor",
            "return gate * of_gate, up * of_up",
        ),
    ],
    ids=["group of the next row", "scale behind", "scale of the gate", "read behind", "no factor"],
)
def test_dequant_swiglu_quant(original: str, replacement: str) -> None:
    assert_noticed("ascend_ops_core::dequant_swiglu_quant", original, replacement)
