"""How the attention kernels are cut, from the figures of the devices."""

from __future__ import annotations

import pytest
from ascend_attention.ops.sparse_attention.plan import Plan, plan
from ascend_ops_core.devices import facts_of

V4 = {"width": 512, "widths": [128, 512], "itemsize": 2}


def cut(family: str, tokens: int, heads: int, **changes: object) -> Plan:
    return plan(facts_of(family), tokens, heads, **(V4 | changes))  # type: ignore[arg-type]


@pytest.mark.parametrize("family", ["A2", "A3", "A5"])
@pytest.mark.parametrize("itemsize", [2, 4])
@pytest.mark.parametrize("width", [1, 16, 65, 128, 512])
@pytest.mark.parametrize("heads", [1, 16, 17, 64, 128])
def test_buffers_hold_what_they_must(family: str, itemsize: int, width: int, heads: int) -> None:
    facts = facts_of(family)
    got = cut(family, 7, heads, width=width, itemsize=itemsize)
    assert got.heads * got.padded * 4 <= facts.l0c_bytes
    assert (2 * got.rows + got.heads) * got.padded * itemsize <= facts.l1_bytes
    assert 16 <= got.heads < 2 * max(heads, 16)
    assert got.padded >= width
    for size in (got.heads, got.rows, got.padded):
        assert size >= 16
        assert size & (size - 1) == 0


@pytest.mark.parametrize("widths", [[], [0], [1], [31, 33], [128, 0, 8192]])
def test_every_source_takes_whole_tiles(widths: list[int]) -> None:
    got = cut("A2", 3, 64, widths=widths)
    assert got.columns % got.rows == 0
    assert sum(widths) <= got.columns <= sum(widths) + len(widths) * (got.rows - 1)


def test_many_tokens_are_not_split_and_few_are() -> None:
    assert cut("A2", 4096, 64).splits == 1
    alone = cut("A2", 1, 64)
    # 24 matrix cores, two tiles of 32 heads; 20 tiles of rows are 10 parts of two.
    assert (alone.heads, alone.rows, alone.splits) == (32, 32, 10)
    assert cut("A2", 1, 64, widths=[128, 8192]).splits == 12
    assert cut("A2", 1, 64, widths=[3]).splits == 1
    assert cut("A2", 0, 64).splits >= 1


def test_rounds_are_bounded_and_even() -> None:
    got = cut("A2", 4096, 64)
    assert got.tokens * got.columns * got.padded * 2 <= 128 * 1024**2
    rounds = -(-4096 // got.tokens)
    assert got.tokens - 4096 / rounds < 1
    # One token is held whatever it takes.
    assert cut("A2", 3, 64, widths=[1 << 20]).tokens == 1
