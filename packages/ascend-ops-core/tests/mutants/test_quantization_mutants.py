"""Faults in the kernels of quantisation that their proofs notice."""

from __future__ import annotations

import pytest
from ascend_ops_core.testing.mutants import assert_noticed

pytestmark = pytest.mark.interpreter


@pytest.mark.parametrize(
    ("op", "original", "replacement"),
    [
        (
            "dynamic_quantize",
            "programs = -(-tokens // tile) * heads",
            "programs = tokens // tile * heads",
        ),
        ("dynamic_quantize", "head = unit % HEADS", "head = 0"),
        ("dynamic_quantize", "head + r * HEADS, scale, mask=here)", "head + r * HEADS, scale)"),
        ("static_quantize", "(unit % blocks) * BLOCK", "0 * BLOCK"),
        ("static_quantize", "saturated(q, -128.0, 127.0)", "saturated(q, -127.0, 127.0)"),
        ("block_quantize", "tl.where((bits & 0x7FFFFF) > 0, 1, 0)", "1"),
        ("block_quantize", "block + r * blocks\n        if POWER", "block + r\n        if POWER"),
        ("block_dequantize", "first // HEIGHT * blocks", "first * blocks"),
        (
            "block_dequantize",
            "first * blocks + block + r * blocks, mask=here",
            "block + r, mask=here",
        ),
        ("mxfp8_quantize", ">> 23) - 8, amax)", ">> 23) - 7, amax)"),
        (
            "mxfp8_quantize",
            "saturated(times_inverse_power(x, code), -448.0, 448.0)",
            "times_inverse_power(x, code)",
        ),
        (
            "mxfp4_quantize",
            "tl.store(out, (low | (high << 4))",
            "tl.store(out, (high | (low << 4))",
        ),
        ("mxfp4_dequantize", "tl.join(low, high)", "tl.join(high, low)"),
        ("mxfp4_quantize", "programs = -(-rows // tile)", "programs = rows // tile"),
        ("fp4_pack", "codes.to(tl.int32) & 15", "codes.to(tl.int32) & 255"),
        ("fp4_pack", "packed, mask=j < pairs - first)", "packed)"),
        ("fp4_unpack", "tl.join(packed & 15, packed >> 4)", "tl.join(packed >> 4, packed & 15)"),
    ],
)
def test_quantization(op: str, original: str, replacement: str) -> None:
    assert_noticed(f"ascend_ops_core::{op}", original, replacement)
