"""Which rank holds which expert, for any number of both."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from ascend_ops_core.checks import require_at_least

__all__ = ["ExpertPartition"]


@dataclass(frozen=True)
class ExpertPartition:
    """Experts in a row, cut into as equal parts as their number allows.

    Every rank has room for :attr:`capacity` experts, since grouped operators and MC2 want the same
    number everywhere; the last places of a rank with fewer stay empty and are never routed to.
    The place of an expert is its physical id, ``rank * capacity + place on the rank``.

    Attributes:
        experts: number of experts.
        ranks: number of ranks.

    Raises:
        InvalidInputError: no expert or no rank.
    """

    experts: int
    ranks: int

    def __post_init__(self) -> None:
        require_at_least("experts", self.experts, 1)
        require_at_least("ranks", self.ranks, 1)

    @property
    def capacity(self) -> int:
        """Places on each rank."""
        return -(-self.experts // self.ranks)

    @property
    def places(self) -> int:
        """Places on all ranks; physical ids lie below."""
        return self.capacity * self.ranks

    @property
    def counts(self) -> tuple[int, ...]:
        """Experts of each rank; the first ranks have one more where they do not divide."""
        each, more = divmod(self.experts, self.ranks)
        return tuple(each + (rank < more) for rank in range(self.ranks))

    def experts_of(self, rank: int) -> range:
        """The experts that a rank holds."""
        first = sum(self.counts[:rank])
        return range(first, first + self.counts[rank])

    def physical_ids(self, device: torch.device | str = "cpu") -> torch.Tensor:
        """``[experts]`` int64: the physical id of each expert."""
        places = [
            rank * self.capacity + place
            for rank, count in enumerate(self.counts)
            for place in range(count)
        ]
        return torch.tensor(places, dtype=torch.int64, device=device)

    def to_physical(self, ids: torch.Tensor) -> torch.Tensor:
        """Physical ids of experts.

        Args:
            ids: of any shape, int32 or int64; a negative one, of a choice that is none, stays -1.

        Returns:
            The same shape, int64.
        """
        each, more = divmod(self.experts, self.ranks)
        ids = ids.long()
        if not more:
            return ids.clamp(min=-1)
        # The first ``more`` ranks are full, so only what lies behind them moves.
        behind = ids - more * self.capacity
        moved = more * self.capacity + behind + behind.div(max(each, 1), rounding_mode="floor")
        return torch.where(behind < 0, ids, moved).clamp(min=-1)
