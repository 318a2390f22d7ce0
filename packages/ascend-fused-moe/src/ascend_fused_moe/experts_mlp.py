"""The seam between the flow of tokens and the experts' products."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

import torch
from ascend_ops_core.errors import InvalidInputError

from ascend_fused_moe.group_list import GroupList
from ascend_fused_moe.ops.experts import fused_experts

if TYPE_CHECKING:
    from ascend_fused_moe.mlp.lora import RowsLoRA

__all__ = ["ExpertsMlp", "StackedExpertsMlp", "experts_of_rows"]


class ExpertsMlp(Protocol):
    """The feed-forward networks of a rank's experts."""

    def __call__(
        self, rows: torch.Tensor, group_list: GroupList, lora: RowsLoRA | None = None
    ) -> torch.Tensor:
        """Run each row through its expert.

        Args:
            rows: ``[R, H]`` in the order of the experts; ``R`` may be 0, and rows beyond those
                that ``group_list`` stands for hold anything.
            group_list: rows of each expert.
            lora: adapters of the rows; None for none.

        Returns:
            ``[R, H]`` in the same order; what comes of rows beyond the list is not read.
        """


class StackedExpertsMlp:
    """Gated experts with stacked weights, by :func:`ascend_fused_moe.ops.experts.fused_experts`.

    Args:
        w13: ``[E, 2 * I, H]``, gate rows before up rows; the last places of a rank may have none,
            where there is no expert.
        w2: ``[E, H, I]``.
        swiglu_limit: see :func:`ascend_fused_moe.ops.experts.fused_experts`.
    """

    def __init__(
        self, w13: torch.Tensor, w2: torch.Tensor, swiglu_limit: float | None = None
    ) -> None:
        self.w13 = w13
        self.w2 = w2
        self.swiglu_limit = swiglu_limit

    def __call__(
        self, rows: torch.Tensor, group_list: GroupList, lora: RowsLoRA | None = None
    ) -> torch.Tensor:
        """See :class:`ExpertsMlp`.

        Raises:
            InvalidInputError: adapters.
        """
        if lora is not None:
            raise InvalidInputError(
                "adapters of experts in StackedExpertsMlp",
                "its kernel computes both products at once",
                "Hold the experts in an AscendRoutedExperts.",
            )
        held = GroupList(group_list.values[: self.w13.shape[0]], group_list.kind)
        ids = experts_of_rows(held, rows.shape[0]).unsqueeze(1)
        ones = torch.ones(ids.shape, dtype=torch.float32, device=rows.device)
        return fused_experts(rows, self.w13, self.w2, ones, ids, self.swiglu_limit)


def experts_of_rows(group_list: GroupList, rows: int) -> torch.Tensor:
    """``[rows]`` int64: the expert of each row; of rows beyond the list, the last expert.

    Found without a look at the list on the host, so that a captured graph may contain it.
    """
    ends = group_list.cumulative().values
    place = torch.arange(rows, device=ends.device)
    return torch.searchsorted(ends, place, right=True).clamp(max=group_list.experts - 1)
