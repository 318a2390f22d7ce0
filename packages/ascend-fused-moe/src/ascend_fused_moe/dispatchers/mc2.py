"""Dispatch and combine by operators that exchange rows themselves."""

from __future__ import annotations

from typing import Any

import torch
from ascend_ops_core.devices import current_facts
from ascend_ops_core.errors import InvalidInputError

from ascend_fused_moe.dispatchers.base import MoETokenDispatcher
from ascend_fused_moe.dispatchers.npu import (
    distribute_combine,
    distribute_dispatch,
    supports_mc2,
)
from ascend_fused_moe.group_list import GroupList, GroupListKind
from ascend_fused_moe.groups import MoEGroup
from ascend_fused_moe.pipeline import (
    MoECombineMetadata,
    MoEMC2CombineMetadata,
    MoETokenDispatchInput,
    MoETokenDispatchOutput,
)

__all__ = ["TokenDispatcherWithMC2"]


class TokenDispatcherWithMC2(MoETokenDispatcher):
    """torch_npu's npu_moe_distribute_dispatch_v2 and npu_moe_distribute_combine_v2.

    Shapes are those of the fullest possible step, so the host waits for nothing and a captured
    graph can contain both. Every rank dispatches the same number of rows, at least one, and a
    row's choices are different experts.

    Args:
        group: the ranks that hold the experts; nothing else may use its communicator.
        capacity: places for experts on each rank.
    """

    def __init__(self, group: MoEGroup, capacity: int) -> None:
        self.group = group
        self.capacity = capacity
        self.refresh_hccl_group()

    def refresh_hccl_group(self) -> None:
        """Ask for the communicator's name again, after groups were made anew."""
        self._name = self.group.name

    def token_dispatch(self, given: MoETokenDispatchInput) -> MoETokenDispatchOutput:
        """See :meth:`MoETokenDispatcher.token_dispatch`.

        Raises:
            InvalidInputError: rows that are on no NPU, or beyond the operators' limits.
        """
        x = given.hidden_states
        self._check(given)
        weights, ids = given.weights.float(), given.ids.int()
        global_rows = x.shape[0] * self.group.world_size
        rows, _, assist_info, counts, ep_counts, tp_counts, expand_scales = distribute_dispatch(
            x, ids, **self.get_dispatch_mc2_kwargs(weights, given.active, global_rows)
        )
        metadata = MoEMC2CombineMetadata(
            weights,
            ids,
            given.active,
            assist_info,
            ep_counts,
            tp_counts,
            expand_scales,
            global_rows,
        )
        return MoETokenDispatchOutput(rows, GroupList(counts, GroupListKind.COUNTS), metadata)

    def token_combine(self, rows: torch.Tensor, metadata: MoECombineMetadata) -> torch.Tensor:
        """See :meth:`MoETokenDispatcher.token_combine`."""
        assert isinstance(metadata, MoEMC2CombineMetadata)
        out = distribute_combine(rows, metadata.ids, **self.get_combine_mc2_kwargs(metadata))
        if metadata.active is None:
            return out
        # What comes out of a row that is not active is not documented.
        return torch.where(metadata.active.unsqueeze(1), out, 0.0)

    def get_dispatch_mc2_kwargs(
        self, weights: torch.Tensor, active: torch.Tensor | None, global_rows: int
    ) -> dict[str, Any]:
        """Keyword arguments of the dispatch, besides rows and ids."""
        return {
            **self._everywhere(global_rows),
            "expert_token_nums_type": GroupListKind.COUNTS.value,
            **self._of_family("expert_scales", weights, active),
        }

    def get_combine_mc2_kwargs(self, metadata: MoEMC2CombineMetadata) -> dict[str, Any]:
        """Keyword arguments of the combine, besides rows and ids."""
        return {
            **self._everywhere(metadata.global_rows),
            "assist_info_for_combine": metadata.assist_info,
            "ep_send_counts": metadata.ep_counts,
            "expert_scales": metadata.weights,
            **({} if self._a2() else {"tp_send_counts": metadata.tp_counts}),
            **self._of_family("expand_scales", metadata.expand_scales, metadata.active),
        }

    def _everywhere(self, global_rows: int) -> dict[str, Any]:
        ranks = self.group.world_size
        return {
            "group_ep": self._name,
            "ep_world_size": ranks,
            "ep_rank_id": self.group.rank_in_group,
            "moe_expert_num": ranks * self.capacity,
            "global_bs": global_rows,
        }

    def _of_family(
        self, scales: str, values: torch.Tensor, active: torch.Tensor | None
    ) -> dict[str, Any]:
        """A2 combines by scales that travel with the rows, and not in all of its ways by a mask.

        There rows that are not active travel as well, and what they become is dropped.
        """
        return {scales: values} if self._a2() else {"x_active_mask": active}

    @staticmethod
    def _a2() -> bool:
        return current_facts().family == "A2"

    def _check(self, given: MoETokenDispatchInput) -> None:
        x = given.hidden_states
        if x.device.type not in ("npu", "meta"):
            raise InvalidInputError(
                f"communication 'mc2' of rows on {x.device.type!r}",
                "its operators exist on NPUs alone",
                "Use 'all_gather' or 'all_to_all'.",
            )
        support = supports_mc2(
            current_facts(),
            ranks=self.group.world_size,
            capacity=self.capacity,
            rows=x.shape[0],
            hidden=x.shape[1],
            top_k=given.ids.shape[1],
            dtype=x.dtype,
        )
        if not support:
            raise InvalidInputError(
                "communication 'mc2'",
                support.reason,
                "Use 'all_gather' or 'all_to_all' for this step.",
            )
