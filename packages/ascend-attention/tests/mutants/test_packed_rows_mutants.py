"""Faults in the kernels of packed rows that their proofs notice."""

from __future__ import annotations

import pytest
from ascend_ops_core.testing.mutants import assert_noticed, mutated

pytestmark = pytest.mark.interpreter


@pytest.mark.parametrize(
    ("original", "replacement"),
    [
        ("if (block >= 0) & (offset >= 0):", "if block >= 0:"),
        ("> 0x600000, 1, 0)", "> 0x7FFFFF, 1, 0)"),
        ("mask=g < GROUPS", "mask=g < LINES"),
        ("scales = out + QUANTISED + 2 * ROTARY", "scales = out + QUANTISED + ROTARY"),
        ("inside = at < QUANTISED", "inside = at < QUANTISED + ROTARY"),
    ],
    ids=[
        "padding written",
        "scale always rounded down",
        "scales behind the row",
        "scales at another place",
        "rotated values in a group",
    ],
)
def test_quantize_kv_rows(original: str, replacement: str) -> None:
    assert_noticed("ascend_attention::quantize_kv_rows", original, replacement)


@pytest.mark.parametrize(
    ("original", "replacement"),
    [
        ("wanted = wanted & (tl.load(valid_ptr + i) != 0)", "wanted = wanted"),
        ("wanted = (block >= 0) & (offset >= 0)", "wanted = block >= 0"),
        ("(e4m3_values(bits) * scales[:, None])", "e4m3_values(bits)"),
        ("mask=r < PADDED - QUANTISED", "mask=r < ROTARY"),
        ("if PADDED > QUANTISED:", "if PADDED > QUANTISED + ROTARY:"),
    ],
    ids=["invalid rows read", "padding read", "not scaled", "tail not written", "not rotated"],
)
def test_unpacking(original: str, replacement: str) -> None:
    # The packages are imported anew as well, since they hold functions of the module.
    from ascend_attention.ops.sparse_attention.kernels import gathering, unpacking

    kept = '"""Sparse attention in Triton'
    same = '"""Copies each token'
    with mutated(unpacking, original, replacement), mutated(gathering, same, same):
        assert_noticed("ascend_attention::sparse_attention", kept, kept)
