"""Tokens on their way to the experts, and what brings the results back."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from ascend_ops_core.checks import INDICES, require_dtype
from ascend_ops_core.errors import InvalidInputError

from ascend_fused_moe.group_list import GroupList

__all__ = [
    "MoEAllGatherCombineMetadata",
    "MoEAllToAllCombineMetadata",
    "MoECombineMetadata",
    "MoEMC2CombineMetadata",
    "MoETokenDispatchInput",
    "MoETokenDispatchOutput",
]


@dataclass(frozen=True)
class MoETokenDispatchInput:
    """Rows and the experts that each of them visits.

    Attributes:
        hidden_states: ``[N, H]``; ``N`` may be 0.
        weights: ``[N, k]`` float32.
        ids: ``[N, k]`` physical ids; a negative one is no choice.
        active: ``[N]`` bool, False for rows that visit no expert; None if all do.
        adapters: ``[N]`` integer, see :class:`MoERouterInput`; or None.
        complete: no id is negative and all rows are active, which nobody looks up on a device.

    Raises:
        InvalidInputError: shapes that do not belong together, or ids that are not integers.
    """

    hidden_states: torch.Tensor
    weights: torch.Tensor
    ids: torch.Tensor
    active: torch.Tensor | None = None
    adapters: torch.Tensor | None = None
    complete: bool = False

    def __post_init__(self) -> None:
        rows = self.hidden_states.shape[0]
        if self.weights.shape != self.ids.shape or self.ids.dim() != 2 or len(self.ids) != rows:
            raise InvalidInputError(
                f"weights {list(self.weights.shape)} and ids {list(self.ids.shape)}",
                f"both need [N, k] with N={rows}",
                "Route exactly the rows that are dispatched.",
            )
        require_dtype("ids", self.ids, INDICES)
        for name in ("active", "adapters"):
            each = getattr(self, name)
            if each is not None and each.shape != (rows,):
                raise InvalidInputError(
                    f"{name} {list(each.shape)}",
                    f"there are {rows} rows",
                    "Give each row one value.",
                )

    def chosen(self) -> torch.Tensor:
        """``[N, k]`` int64: the ids, -1 in rows that are not active."""
        ids = self.ids.long()
        return ids if self.active is None else ids.masked_fill(~self.active.unsqueeze(1), -1)


@dataclass(frozen=True)
class MoEAllGatherCombineMetadata:
    """Where the rows of one rank's experts belong.

    Attributes:
        weights: ``[N, k]`` float32.
        index: ``[N, k]`` int64: the row of each choice, -1 where its expert lies elsewhere.
        complete: every choice has a row.
    """

    weights: torch.Tensor
    index: torch.Tensor
    complete: bool = False


@dataclass(frozen=True)
class MoEAllToAllCombineMetadata:
    """The way back of rows that were sent to other ranks.

    Attributes:
        weights: ``[N, k]`` float32.
        index: ``[N, k]`` int64: the place of each choice among the rows that were sent, or -1.
        order: ``[R]`` int64: the row received of which each row of the experts was made.
        sent: rows sent to each rank.
        received: rows received from each rank.
        complete: every choice was sent.
    """

    weights: torch.Tensor
    index: torch.Tensor
    order: torch.Tensor
    sent: tuple[int, ...]
    received: tuple[int, ...]
    complete: bool = False


@dataclass(frozen=True)
class MoEMC2CombineMetadata:
    """What MC2's dispatch hands to its combine; see torch_npu's npu_moe_distribute_combine_v2.

    Attributes:
        weights: ``[N, k]`` float32.
        ids: ``[N, k]`` int32.
        active: ``[N]`` bool, or None.
        assist_info: opaque.
        ep_counts: opaque.
        tp_counts: opaque.
        expand_scales: opaque; A2 alone fills it.
        global_rows: rows of all ranks, the same at dispatch.
    """

    weights: torch.Tensor
    ids: torch.Tensor
    active: torch.Tensor | None
    assist_info: torch.Tensor
    ep_counts: torch.Tensor
    tp_counts: torch.Tensor
    expand_scales: torch.Tensor
    global_rows: int


MoECombineMetadata = (
    MoEAllGatherCombineMetadata | MoEAllToAllCombineMetadata | MoEMC2CombineMetadata
)


@dataclass(frozen=True)
class MoETokenDispatchOutput:
    """Rows in the order of this rank's experts.

    Attributes:
        rows: ``[R, H]``; rows beyond those that ``group_list`` stands for hold anything.
        group_list: rows of each of this rank's places for experts.
        metadata: what the same dispatcher's combine needs.
        adapters: ``[R]`` integer, of the rows; None where the input had none.
    """

    rows: torch.Tensor
    group_list: GroupList
    metadata: MoECombineMetadata
    adapters: torch.Tensor | None = None
