"""Faults in the kernels of latent attention that their proofs notice."""

from __future__ import annotations

import pytest
from ascend_ops_core.testing.mutants import assert_noticed

pytestmark = pytest.mark.interpreter


@pytest.mark.parametrize(
    ("original", "replacement"),
    [
        ("seen = (r < context - start)[:, None]", "seen = (r < ROWS)[:, None]"),
        ('tl.where(seen, 0.0, float("-inf"))[None, :]', "tl.where(seen, 0.0, 0.0)[None, :]"),
        ("tl.load(table + column)", "tl.load(table)"),
        ("as_int64(request) * table_stride", "as_int64(request) * 0"),
        ("total = total * tl.exp(peak - higher)", "total = total * 1.0"),
        ("first = split * share * ROWS", "first = 0 * split * share * ROWS"),
        ("to = (as_int64(split) * tokens + token)", "to = (as_int64(split) * 0 + token)"),
    ],
    ids=[
        "rows behind the context read",
        "rows behind the context weighted",
        "first block read for all",
        "requests mixed up",
        "sums of earlier tiles not rescaled",
        "every split begins at the first row",
        "splits write one part",
    ],
)
def test_mla_attention(original: str, replacement: str) -> None:
    assert_noticed("ascend_attention::mla_attention", original, replacement)


@pytest.mark.parametrize(
    ("original", "replacement"),
    [
        ("if (block >= 0) & (offset >= 0):", "if block >= 0:"),
        ("x * scale * weight", "x * weight"),
        ("second * cos + first * sin", "second * cos - first * sin"),
        ("as_int64(unit) * kv_stride", "as_int64(unit) * (RANK + 2 * PAIRS)"),
        ("tl.store(to + PAIRS + at", "tl.store(to + at"),
    ],
    ids=[
        "padding written",
        "no norm",
        "turned the other way",
        "gaps between rows ignored",
        "second elements over the first",
    ],
)
def test_kv_rmsnorm_rope_cache(original: str, replacement: str) -> None:
    assert_noticed("ascend_attention::kv_rmsnorm_rope_cache", original, replacement)


@pytest.mark.parametrize(
    ("original", "replacement"),
    [
        ("tl.where(wide > 0.0, values * wide, 0.0)", "values * wide"),
        ("tl.exp(lse - higher)", "tl.exp(lse)"),
        ("summed * factor[:, None] +", "summed +"),
        ("here = as_int64(part) * part_rows + first", "here = first"),
    ],
    ids=[
        "garbage of empty parts read",
        "weights overflow",
        "sum not rescaled",
        "first part read for all",
    ],
)
def test_merge_attention_states(original: str, replacement: str) -> None:
    assert_noticed("ascend_attention::merge_attention_states", original, replacement)
