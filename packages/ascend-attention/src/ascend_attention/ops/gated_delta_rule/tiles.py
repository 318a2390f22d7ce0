"""How the kernels of the gated delta rule cut their work: arithmetic of a device's buffers."""

from __future__ import annotations

import math

from ascend_ops_core.devices import DeviceFacts
from ascend_ops_core.tiling import block_of, next_power_of_two, tile_rows

from ascend_attention.ops.gated_delta_rule.layout import BLOCK, CHUNK

SMALLEST = 16
"""The smallest side of a product that the matrix unit takes."""

_MOST_VALUES = 64
_MOST_CHUNKS = 4


def smallest_of(itemsize: int) -> int:
    """The smallest side of a state that is an operand: A5's compiler fails on 16 of 16 bits."""
    return SMALLEST if itemsize == 4 else 2 * SMALLEST


def columns_of_sums(facts: DeviceFacts, columns: int) -> tuple[int, int]:
    """Columns of decays that are summed together, and chunks where a chunk has few of them.

    Decays are loaded and stored in float32; sums are made where they are stored from.
    """
    fit = block_of(facts, streamed=8 * CHUNK, minimum=SMALLEST)
    block = min(max(next_power_of_two(columns), SMALLEST), fit)
    return block, min(fit // block, _MOST_CHUNKS)


def rows_of_a_state(facts: DeviceFacts, padded: int, height: int, pairs: int, itemsize: int) -> int:
    """Rows of a head's state that a program of the recurrence holds.

    The state itself, its product with a key or query, and what a token adds live in float32; rows
    come and go in the dtype of the state. Fewer rows where requests and heads are fewer than the
    cores.
    """
    most = next_power_of_two(height)
    while most > SMALLEST and pairs * -(-height // most) < facts.vector_cores:
        most //= 2
    return tile_rows(
        facts, padded, streamed=itemsize, local=12, minimum=min(SMALLEST, most), maximum=most
    )


def values_of_a_pass(facts: DeviceFacts, height: int, pairs: int, itemsize: int) -> tuple[int, int]:
    """Rows of a head's state that go through the chunks together; fewer to occupy all cores.

    Returns:
        Rows of a part, and how many parts a program has, which share what it reads of a chunk. Two
        need operands of 16 bits: with the state, what it loses and the operand that is made of it
        they take ten bytes for an element of 128 by 128.
    """
    smallest = smallest_of(itemsize)
    taken = min(max(next_power_of_two(height), smallest), _MOST_VALUES)
    while taken > smallest and pairs * -(-height // taken) < facts.cube_cores:
        taken //= 2
    halves = height > taken and pairs * -(-height // (2 * taken)) >= facts.cube_cores
    return taken, 2 if halves and itemsize == 2 else 1


def heads_of_tokens(facts: DeviceFacts, heads: int, padded: int, itemsize: int) -> int:
    """Heads of which a block of tokens is decayed channel by channel together.

    Keys and sums come in; keys, the decayed ones, and their products live in float32.
    """
    width = BLOCK * padded
    most = tile_rows(
        facts, width, streamed=itemsize + 4, local=16, maximum=next_power_of_two(heads)
    )
    return math.gcd(heads, most)


def heads_of_blocks(facts: DeviceFacts, heads: int) -> int:
    """Heads whose blocks on the diagonal are inverted together: a divisor of all.

    Of each half of a block its rows of the inverse live, of one of them also a product, and what
    is spread for it, at the same time.
    """
    block = BLOCK * BLOCK
    most = tile_rows(facts, block, local=16, streamed=0, maximum=next_power_of_two(heads))
    return math.gcd(heads, most)
