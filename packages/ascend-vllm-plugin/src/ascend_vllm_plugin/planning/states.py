"""Recurrent states beside caches of tokens: pages of one length, as vLLM 0.27.1 makes them.

Follows ``Platform._align_hybrid_block_size`` and ``MambaSpec`` without importing vLLM. A block of
tokens is made so long that its page holds a state, and a state's page is padded to that length, so
that a block of the pool can be either.
"""

from __future__ import annotations

from dataclasses import dataclass

from ascend_attention.caches import CacheKind

SMALLEST_BLOCK = 128
"""Tokens of which vLLM makes a multiple with latents beside states; the NPU's kernels as well."""


@dataclass(frozen=True)
class StateUse:
    """How many states a request has.

    Attributes:
        drafts: most draft tokens of a step, for each of which there is a state.
        prefix_caching: states at the ends of blocks are kept for prefixes, so that a request works
            in one while the last one stays.
    """

    drafts: int = 0
    prefix_caching: bool = False

    @property
    def slots(self) -> int:
        """States of a request at a time."""
        return 1 + self.drafts + int(self.prefix_caching)


@dataclass(frozen=True)
class StatePages(CacheKind):
    """The states of one layer: a row is one state, ``width`` bytes of several dtypes.

    Attributes:
        use: how many of them a request has, however long its context is.
    """

    use: StateUse = StateUse()


def hybrid_block_tokens(row_bytes: int, state_bytes: int, block_tokens: int | None = None) -> int:
    """Tokens of a block whose page holds a state.

    Args:
        row_bytes: bytes of a token in one layer.
        state_bytes: bytes of a state of one layer.
        block_tokens: what was asked for, or None; the result is a multiple of it.
    """
    unit = max(block_tokens or 0, SMALLEST_BLOCK)
    return unit * -(-state_bytes // (unit * row_bytes))
