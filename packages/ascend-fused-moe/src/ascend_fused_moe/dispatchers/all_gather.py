"""Dispatch where every rank has the rows already: each takes what its experts want."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from ascend_fused_moe.dispatchers.base import MoETokenDispatcher
from ascend_fused_moe.group_list import GroupList, GroupListKind
from ascend_fused_moe.ops.permutation import combine_rows, permute_rows
from ascend_fused_moe.permutation import permute
from ascend_fused_moe.pipeline import (
    MoEAllGatherCombineMetadata,
    MoECombineMetadata,
    MoETokenDispatchInput,
    MoETokenDispatchOutput,
)

__all__ = ["TokenDispatcherWithAllGather"]


@dataclass(frozen=True)
class TokenDispatcherWithAllGather(MoETokenDispatcher):
    """Sorts the rows of this rank's experts; exchanges nothing, and its sums are this rank's part.

    Attributes:
        rank: this rank among those that hold the experts.
        capacity: places for experts on each rank.
        ranks: number of those ranks; 0 where it is not known.
    """

    rank: int
    capacity: int
    ranks: int = 0

    def token_dispatch(self, given: MoETokenDispatchInput) -> MoETokenDispatchOutput:
        """See :meth:`MoETokenDispatcher.token_dispatch`."""
        local = given.chosen() - self.rank * self.capacity
        rows, index, counts = permute_rows(given.hidden_states, local, self.capacity)
        adapters = None
        if given.adapters is not None:
            adapters = permute(given.adapters, local, self.capacity)[0]
        group_list = GroupList(counts, GroupListKind.COUNTS)
        group_list.check(rows.shape[0], self.capacity)
        complete = self.ranks == 1 and given.complete
        metadata = MoEAllGatherCombineMetadata(given.weights, index, complete)
        return MoETokenDispatchOutput(rows, group_list, metadata, adapters)

    def token_combine(self, rows: torch.Tensor, metadata: MoECombineMetadata) -> torch.Tensor:
        """See :meth:`MoETokenDispatcher.token_combine`; the sum over this rank's experts alone."""
        assert isinstance(metadata, MoEAllGatherCombineMetadata)
        return combine_rows(rows, metadata.index, metadata.weights, complete=metadata.complete)
