"""The router of models that limit a token to the experts of few groups."""

from __future__ import annotations

import torch

from ascend_fused_moe.ops.grouped_routing import check_groups, grouped_topk_routing
from ascend_fused_moe.pipeline import MoERouterInput

__all__ = ["AscendGroupedTopKRouter"]


class AscendGroupedTopKRouter:
    """The experts of highest score in the groups of highest score.

    See :func:`ascend_fused_moe.ops.grouped_routing.grouped_topk_routing`.

    Args:
        num_experts: experts to choose from.
        top_k: experts of each row.
        groups: number of groups.
        top_groups: groups of which a row takes experts.
        scoring: score of a logit.
        group_score: ``"top2"`` (DeepSeek-V3) or ``"max"`` (V2).
        bias: ``[num_experts]``, moves the choices but not the weights; or None.
        renormalize: make the weights of a row sum to 1 before scaling.
        scale: factor on the weights.

    Raises:
        InvalidInputError: numbers that do not fit together.
    """

    def __init__(
        self,
        num_experts: int,
        top_k: int,
        groups: int,
        top_groups: int,
        *,
        scoring: str = "sigmoid",
        group_score: str = "top2",
        bias: torch.Tensor | None = None,
        renormalize: bool = True,
        scale: float = 1.0,
    ) -> None:
        check_groups(num_experts, top_k, groups, top_groups, group_score)
        self.num_experts = num_experts
        self.top_k = top_k
        self.groups = groups
        self.top_groups = top_groups
        self.scoring = scoring
        self.group_score = group_score
        self.bias = bias
        self.renormalize = renormalize
        self.scale = scale

    def select_experts(self, given: MoERouterInput) -> tuple[torch.Tensor, torch.Tensor]:
        """See :meth:`AscendRouter.select_experts`."""
        return grouped_topk_routing(
            given.router_logits,
            self.bias,
            self.top_k,
            self.groups,
            self.top_groups,
            scoring=self.scoring,
            group_score=self.group_score,
            renormalize=self.renormalize,
            scale=self.scale,
        )
