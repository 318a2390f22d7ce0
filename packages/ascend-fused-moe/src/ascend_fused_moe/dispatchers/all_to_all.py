"""Dispatch by all-to-all: each row travels to the ranks whose experts it visits."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from ascend_fused_moe.dispatchers.base import MoETokenDispatcher
from ascend_fused_moe.group_list import GroupList, GroupListKind
from ascend_fused_moe.groups import MoEGroup
from ascend_fused_moe.ops.permutation import combine_rows, permute_rows
from ascend_fused_moe.permutation import permute
from ascend_fused_moe.pipeline import (
    MoEAllToAllCombineMetadata,
    MoECombineMetadata,
    MoETokenDispatchInput,
    MoETokenDispatchOutput,
)

__all__ = ["TokenDispatcherWithAll2AllV"]


@dataclass(frozen=True)
class TokenDispatcherWithAll2AllV(MoETokenDispatcher):
    """Two exchanges of rows of any number, and one of their numbers.

    How many rows travel is known to the host only after it has waited for the device, so this
    dispatcher cannot be part of a captured graph.

    Attributes:
        group: the ranks that hold the experts.
        capacity: places for experts on each rank.
    """

    group: MoEGroup
    capacity: int

    def token_dispatch(self, given: MoETokenDispatchInput) -> MoETokenDispatchOutput:
        """See :meth:`MoETokenDispatcher.token_dispatch`."""
        ranks = self.group.world_size
        places = ranks * self.capacity
        rows, index, counts = permute_rows(given.hidden_states, given.chosen(), places)
        leaving, arriving = self._numbers(counts.view(ranks, self.capacity))
        sent, received = (tuple(one.sum(1).tolist()) for one in (leaving, arriving))
        arrived = self.group.all_to_all_rows(rows[: sum(sent)], sent, received)
        order = self._by_expert(arriving, arrived.device)
        adapters = None
        if given.adapters is not None:
            leaving_too = permute(given.adapters, given.chosen(), places)[0][: sum(sent)]
            adapters = self.group.all_to_all_rows(leaving_too, sent, received)[order]
        group_list = GroupList(arriving.sum(0).to(arrived.device), GroupListKind.COUNTS)
        group_list.check(arrived.shape[0], self.capacity)
        metadata = MoEAllToAllCombineMetadata(
            given.weights, index, order, sent, received, given.complete
        )
        return MoETokenDispatchOutput(arrived[order], group_list, metadata, adapters)

    def token_combine(self, rows: torch.Tensor, metadata: MoECombineMetadata) -> torch.Tensor:
        """See :meth:`MoETokenDispatcher.token_combine`; the sum over all experts."""
        assert isinstance(metadata, MoEAllToAllCombineMetadata)
        as_arrived = torch.empty_like(rows)
        as_arrived[metadata.order] = rows
        back = self.group.all_to_all_rows(as_arrived, metadata.received, metadata.sent)
        return combine_rows(back, metadata.index, metadata.weights, complete=metadata.complete)

    def _numbers(self, leaving: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Rows that leave for each place and that arrive from each rank, both on the host."""
        ones = [1] * self.group.world_size
        arriving = self.group.all_to_all_rows(leaving, ones, ones)
        both = torch.stack([leaving, arriving]).cpu()
        return both[0], both[1]

    def _by_expert(self, arriving: torch.Tensor, device: torch.device) -> torch.Tensor:
        """The order that puts rows sorted by rank and then expert in the order of experts."""
        expert = torch.arange(self.capacity).repeat(self.group.world_size)
        return expert.repeat_interleave(arriving.flatten()).argsort(stable=True).to(device)
