"""Dispatch where every rank has the rows already: each takes what its experts want."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from ascend_fused_moe.dispatchers.base import MoETokenDispatcher
from ascend_fused_moe.group_list import GroupList, GroupListKind
from ascend_fused_moe.permutation import permute, unpermute
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
    """

    rank: int
    capacity: int

    def token_dispatch(self, given: MoETokenDispatchInput) -> MoETokenDispatchOutput:
        """See :meth:`MoETokenDispatcher.token_dispatch`."""
        local = given.chosen() - self.rank * self.capacity
        rows, index, counts = permute(given.hidden_states, local, self.capacity)
        group_list = GroupList(counts, GroupListKind.COUNTS)
        group_list.check(rows.shape[0], self.capacity)
        metadata = MoEAllGatherCombineMetadata(given.weights, index)
        return MoETokenDispatchOutput(rows, group_list, metadata)

    def token_combine(self, rows: torch.Tensor, metadata: MoECombineMetadata) -> torch.Tensor:
        """See :meth:`MoETokenDispatcher.token_combine`; the sum over this rank's experts alone."""
        assert isinstance(metadata, MoEAllGatherCombineMetadata)
        return unpermute(rows, metadata.index, metadata.weights)
