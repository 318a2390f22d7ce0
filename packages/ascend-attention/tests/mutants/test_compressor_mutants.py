"""Faults in the compressor's kernels that their proofs notice."""

from __future__ import annotations

import pytest
from ascend_ops_core.testing.mutants import assert_noticed

pytestmark = pytest.mark.interpreter

_PREVIOUS = "rows = tl.where(tl.load(first_ptr + entry) != 0, 0, RATIO)\n            for "
_EVERY_ROW = "rows = RATIO\n            for "


@pytest.mark.parametrize(
    ("original", "replacement"),
    [
        (" % RATIO\n", "\n"),
        ("gate + bias, mask=inside", "gate, mask=inside"),
        ("launch(_bias_kernel, tokens,", "launch(_bias_kernel, tokens - 1,"),
    ],
    ids=["position not wrapped", "bias dropped", "last token skipped"],
)
def test_project_states(original: str, replacement: str) -> None:
    assert_noticed("ascend_attention::project_states", original, replacement)


@pytest.mark.parametrize(
    ("original", "replacement"),
    [
        (f"{_PREVIOUS}start", f"{_EVERY_ROW}start"),
        ("mask = (r < rows - start)[:, None] &", "mask = (r < ROWS)[:, None] &"),
        ("total * before + tl.sum(weight, axis=0)", "total + tl.sum(weight, axis=0)"),
        ("tile = window + (series * RATIO + start)", "tile = window + start"),
        ("pooled / total, mask=inside)", "pooled / total)"),
    ],
    ids=[
        "absent window read",
        "rows beyond the window read",
        "sum not rescaled",
        "own window not read",
        "store unmasked",
    ],
)
def test_compress_windows(original: str, replacement: str) -> None:
    assert_noticed("ascend_attention::compress_windows", original, replacement)


@pytest.mark.parametrize(
    ("original", "replacement"),
    [
        (f"{_PREVIOUS}row", f"{_EVERY_ROW}row"),
        ("lanes = tl.where(exists, WIDTH - channel, 0)", "lanes = WIDTH - channel"),
        ("result = tl.where(read > 0, pooled / total, 0.0)", "result = pooled / total"),
        ("total * before + weight\n", "total + weight\n"),
        ("line = line + series * WIDTH + channel + c", "line = line + channel + c"),
        ("at = here + series * RATIO + row", "at = here + row"),
    ],
    ids=[
        "absent window read",
        "row that does not exist read",
        "padding divided",
        "sum not rescaled",
        "first series only",
        "previous window twice",
    ],
)
def test_compress_paged_windows(original: str, replacement: str) -> None:
    assert_noticed("ascend_attention::compress_paged_windows", original, replacement)
