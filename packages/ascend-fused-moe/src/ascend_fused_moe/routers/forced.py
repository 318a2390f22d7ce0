"""Routing that ignores the scores, so that every expert has the same load in every run."""

from __future__ import annotations

import torch
from ascend_ops_core.checks import require_at_least
from ascend_ops_core.errors import InvalidInputError

from ascend_fused_moe.pipeline import MoERouterInput

__all__ = ["ForcedRouter", "build_force_eplb_topk", "get_force_eplb_topk"]


def build_force_eplb_topk(
    max_rows: int, top_k: int, num_experts: int, device: torch.device | str = "cpu"
) -> torch.Tensor:
    """Experts of each row, in turn: row ``t`` visits ``t * k, t * k + 1, ...`` modulo the experts.

    Made once, before a graph is captured, which then reads the first rows of it.

    Args:
        max_rows: rows of the largest step.
        top_k: experts of each row, at most ``num_experts``, so that they differ.
        num_experts: number of experts.
        device: of the result.

    Returns:
        ``[max_rows, top_k]`` int64.

    Raises:
        InvalidInputError: a number below its least, or more choices than experts.
    """
    require_at_least("max_rows", max_rows, 0)
    require_at_least("top_k", top_k, 1)
    if top_k > num_experts:
        raise InvalidInputError(
            f"top_k={top_k}", f"there are {num_experts} experts", "Choose fewer experts for a row."
        )
    turn = torch.arange(max_rows * top_k, dtype=torch.int64, device=device)
    return turn.remainder(num_experts).view(max_rows, top_k)


def get_force_eplb_topk(table: torch.Tensor, rows: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Equal weights and the forced experts of a step.

    Args:
        table: from :func:`build_force_eplb_topk`.
        rows: of this step.

    Returns:
        Weights ``[rows, k]`` float32, each ``1 / k``, and ids ``[rows, k]`` int64.

    Raises:
        InvalidInputError: the table has fewer rows.
    """
    if rows > table.shape[0]:
        raise InvalidInputError(
            f"{rows} rows",
            f"the table of forced experts has {table.shape[0]}",
            "Build it for the largest step.",
        )
    top_k = table.shape[1]
    weights = torch.full((rows, top_k), 1.0 / top_k, dtype=torch.float32, device=table.device)
    return weights, table[:rows]


class ForcedRouter:
    """A router in the place of a real one, for tests and for measuring with even load.

    Args:
        num_experts: number of experts.
        top_k: experts of each row.
        max_rows: rows of the largest step.
        device: of the rows.
    """

    def __init__(
        self, num_experts: int, top_k: int, max_rows: int, device: torch.device | str = "cpu"
    ) -> None:
        self.num_experts = num_experts
        self.top_k = top_k
        self.table = build_force_eplb_topk(max_rows, top_k, num_experts, device)

    def select_experts(self, given: MoERouterInput) -> tuple[torch.Tensor, torch.Tensor]:
        """See :meth:`AscendRouter.select_experts`."""
        return get_force_eplb_topk(self.table, given.tokens)
