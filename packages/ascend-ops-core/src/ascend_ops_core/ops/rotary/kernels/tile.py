"""Tiles of tokens and heads: their axes, their channels taken apart, their size."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl

from ascend_ops_core.devices import DeviceFacts
from ascend_ops_core.tiling import block_of, next_power_of_two

# Bytes alive per rotated pair besides what is loaded and stored: both channels in float32, and the
# products.
_PAIR_BYTES = 16
# Taking alternating channels apart and together again.
_SPLIT_BYTES = 64
# A norm keeps a channel in float32, its square and its product with the weight.
_NORM_BYTES = 16
# The compile check measures that tiles which fill this share by the estimate fit.
_SHARE = 0.9


@triton.jit
def token_axis(TOKENS: tl.constexpr, HEADS: tl.constexpr):
    """Numbers of a tile's tokens along its first axis, or its second where a head stands alone.

    An axis of one element in the middle costs A2 32 bytes for every element behind it.
    """
    t = tl.arange(0, TOKENS)
    return t[None, :, None] if HEADS == 1 else t[:, None, None]


@triton.jit
def per_head(table, HEADS: tl.constexpr):
    """Rows of a table, ``[TOKENS, HALF]``, for the axes of a tile."""
    return table[None, :, :] if HEADS == 1 else table[:, None, :]


@triton.jit
def apart(pairs, TOKENS: tl.constexpr, HEADS: tl.constexpr, HALF: tl.constexpr):
    """Even and odd channels."""
    if HEADS == 1:
        first, second = tl.split(tl.reshape(pairs, (1, TOKENS, HALF, 2)))
    else:
        first, second = tl.split(tl.reshape(pairs, (TOKENS, HEADS, HALF, 2)))
    return first, second


@triton.jit
def together(first, second, TOKENS: tl.constexpr, HEADS: tl.constexpr, HALF: tl.constexpr):
    """The inverse of :func:`apart`."""
    if HEADS == 1:
        pairs = tl.reshape(tl.join(first, second), (1, TOKENS, 2 * HALF))
    else:
        pairs = tl.reshape(tl.join(first, second), (TOKENS, HEADS, 2 * HALF))
    return pairs


@dataclass(frozen=True)
class Tile:
    """Tokens and heads that are rotated at a time, and widths padded to powers of two."""

    tokens: int
    heads: int
    second_heads: int
    half: int
    kept: int
    programs: int

    @staticmethod
    def of(
        facts: DeviceFacts,
        x: torch.Tensor,
        pairs: int,
        second_count: int,
        *,
        interleaved: bool,
        normed: bool = False,
    ) -> Tile:
        """Widest tile of heads that fits, then as many tokens as fit with it.

        Two kinds of heads have loops, and so buffers, of their own.
        """
        tokens, count, width = x.shape
        half = next_power_of_two(pairs)
        passed = width - 2 * pairs
        kept = next_power_of_two(passed) if passed else 0
        size = x.element_size()
        local = half * (_PAIR_BYTES + (_SPLIT_BYTES if interleaved else 0))
        if normed:
            local += (2 * half + kept) * _NORM_BYTES
        streamed = (4 * half + 2 * kept) * size
        loops = 2 if second_count else 1
        most = next_power_of_two(max(count, second_count))
        block = block_of(
            facts,
            streamed=streamed * loops,
            local=local * loops,
            minimum=1,
            maximum=most,
            share=_SHARE,
        )
        heads, second_heads = (min(block, next_power_of_two(n)) for n in (count, second_count))
        both = heads + second_heads if second_count else heads
        # Few tokens are spread over the cores before a core takes more than one.
        spread = next_power_of_two(-(-tokens // facts.vector_cores))
        taken = block_of(
            facts,
            streamed=streamed * both,
            local=local * both,
            minimum=1,
            maximum=spread,
            share=_SHARE,
        )
        programs = -(-tokens // taken) if count and width else 0
        return Tile(taken, heads, second_heads, half, kept, programs)
