"""How an indexer selects blocks."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class BlockSelectionShape:
    """Sizes of a selection.

    Attributes:
        total_heads: index heads of all ranks.
        head_dim: width of each.
        topk_blocks: blocks that a query keeps.
        init_blocks: first blocks of a context, which are kept before all others.
        local_blocks: last blocks that a query sees, which come next.
    """

    total_heads: int
    head_dim: int
    topk_blocks: int
    init_blocks: int = 0
    local_blocks: int = 1
