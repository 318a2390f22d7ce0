"""Block sizes from the arithmetic of the unified buffer."""

from __future__ import annotations

import pytest
from ascend_ops_core.devices import COMPILED_FAMILIES, facts_of
from ascend_ops_core.errors import InvalidInputError
from ascend_ops_core.tiling import block_of, even_block, next_power_of_two, tile_bytes, tile_rows
from hypothesis import given
from hypothesis import strategies as st

families = st.sampled_from(COMPILED_FAMILIES)
streamed = st.integers(1, 64)
local = st.integers(0, 256)
shares = st.floats(0.1, 1.0)


@given(family=families, streamed=streamed, local=local, share=shares)
def test_block_is_the_largest_power_of_two_that_fits(
    family: str, streamed: int, local: int, share: float
) -> None:
    facts = facts_of(family)
    block = block_of(facts, streamed=streamed, local=local, minimum=1, maximum=1 << 30, share=share)
    budget = facts.ub_bytes * share
    assert block == next_power_of_two(block)
    assert tile_bytes(block, streamed=streamed, local=local) <= budget
    assert tile_bytes(2 * block, streamed=streamed, local=local) > int(budget)


@given(family=families, streamed=streamed, local=local, maximum=st.integers(1, 4096))
def test_maximum_bounds_the_block(family: str, streamed: int, local: int, maximum: int) -> None:
    block = block_of(facts_of(family), streamed=streamed, local=local, minimum=1, maximum=maximum)
    assert block <= maximum


@given(streamed=streamed, local=local)
def test_a_larger_buffer_never_makes_a_smaller_block(streamed: int, local: int) -> None:
    blocks = [block_of(facts_of(family), streamed=streamed, local=local) for family in ("A2", "A5")]
    assert blocks[0] <= blocks[1]


@given(family=families, width=st.integers(1, 2048), streamed=st.integers(1, 8))
def test_rows_of_a_tile_fit(family: str, width: int, streamed: int) -> None:
    facts = facts_of(family)
    rows = tile_rows(facts, width, streamed=streamed, local=8, fixed=4 * width, per_row=4)
    used = tile_bytes(rows * max(width, 32), streamed=streamed, local=8, fixed=4 * width) + 4 * rows
    assert rows == next_power_of_two(rows)
    assert used <= 0.75 * facts.ub_bytes


@given(width=st.integers(1, 100_000), power=st.integers(0, 16))
def test_even_blocks_leave_no_padding_or_are_whole(width: int, power: int) -> None:
    block = even_block(width, 2**power)
    if block < 2**power:
        assert width % block == 0
        assert block >= 256
        assert width % (2 * block) != 0
    else:
        assert block == 2**power


def test_even_blocks_by_hand() -> None:
    assert even_block(1280, 2048) == 256
    assert even_block(18432, 4096) == 2048
    assert even_block(8192, 4096) == 4096
    assert even_block(1000, 1024) == 1024


def test_by_hand() -> None:
    # swiglu in bf16: 2 * 6 + 12 bytes an element, 147,456 bytes of A2's buffer: 6144 -> 4096
    assert block_of(facts_of("A2"), streamed=6, local=12) == 4096
    assert block_of(facts_of("A5"), streamed=6, local=12) == 4096
    assert tile_rows(facts_of("A2"), 128, streamed=6, local=12) == 32
    assert next_power_of_two(0) == 1
    assert next_power_of_two(1000) == 1024


def test_what_cannot_fit_is_refused() -> None:
    with pytest.raises(InvalidInputError, match=r"needs 262144 B, and 75% of A2's .* 147456 B"):
        tile_rows(facts_of("A2"), 16384, streamed=6, local=4)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"streamed": 0}, "at least 1"),
        ({"streamed": 2, "fixed": -1}, "0 or more bytes"),
        ({"streamed": 2, "minimum": 24}, "power of two"),
        ({"streamed": 2, "share": 1.5}, "at most at 1"),
    ],
)
def test_senseless_arguments_are_refused(wrong: dict[str, int], message: str) -> None:
    with pytest.raises(InvalidInputError, match=message):
        block_of(facts_of("A2"), **wrong)
    with pytest.raises(InvalidInputError, match="at least 1 element"):
        tile_rows(facts_of("A2"), 0, streamed=2)
