"""Faults in the kernels of slots, copies and cache writes that their proofs notice."""

from __future__ import annotations

import pytest
from ascend_ops_core.testing.mutants import assert_noticed

pytestmark = pytest.mark.interpreter


@pytest.mark.parametrize(
    ("original", "replacement"),
    [
        ("launch(_slot_mapping_kernel, requests + 1", "launch(_slot_mapping_kernel, requests"),
        ("(left < SPAN - offset, left, SPAN - offset)", "(left < SPAN, left, SPAN)"),
        ("mask=lanes < here)", "mask=lanes < here + 1)"),
        ("slot = tl.where(mine, base + local, -1)", "slot = base + local"),
    ],
    ids=["padding skipped", "block overrun", "store one too many", "other ranks written"],
)
def test_slot_mapping(original: str, replacement: str) -> None:
    assert_noticed("ascend_ops_core::compute_slot_mapping", original, replacement)


@pytest.mark.parametrize(
    ("original", "replacement"),
    [
        ("inside = lanes < size - done", "inside = lanes < size - done + 1"),
        ("while done < size", "while done < size - 1"),
        ("to + done + lanes", "to + lanes"),
    ],
    ids=["one byte more", "last byte skipped", "offset dropped"],
)
def test_batch_memcpy(original: str, replacement: str) -> None:
    assert_noticed("ascend_ops_core::batch_memcpy", original, replacement)


@pytest.mark.parametrize(
    ("original", "replacement"),
    [
        ("if slot >= 0:", "if slot >= -1:"),
        ("inside = lanes < width - start", "inside = lanes < BLOCK"),
        ("head * cache_head_stride", "head * row_head_stride"),
    ],
    ids=["padding written", "store unmasked", "strides mixed up"],
)
def test_scatter_kv(original: str, replacement: str) -> None:
    assert_noticed("ascend_ops_core::scatter_kv", original, replacement)
