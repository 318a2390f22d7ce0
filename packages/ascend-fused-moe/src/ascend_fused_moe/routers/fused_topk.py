"""Routers without groups: the highest scores, or a table of token ids."""

from __future__ import annotations

import torch
from ascend_ops_core.errors import InvalidInputError

from ascend_fused_moe.ops.routing import hash_routing, topk_routing
from ascend_fused_moe.pipeline import MoERouterInput

__all__ = ["AscendFusedTopKRouter", "AscendHashRouter"]


class AscendFusedTopKRouter:
    """The experts of highest score; see :func:`ascend_fused_moe.ops.routing.topk_routing`.

    Args:
        num_experts: experts to choose from.
        top_k: experts of each row.
        scoring: score of a logit.
        bias: ``[num_experts]``, moves the choice but not the weights; or None.
        renormalize: make the weights of a row sum to 1 before scaling.
        scale: factor on the weights.
    """

    def __init__(
        self,
        num_experts: int,
        top_k: int,
        *,
        scoring: str = "softmax",
        bias: torch.Tensor | None = None,
        renormalize: bool = True,
        scale: float = 1.0,
    ) -> None:
        self.num_experts = num_experts
        self.top_k = top_k
        self.scoring = scoring
        self.bias = bias
        self.renormalize = renormalize
        self.scale = scale

    def select_experts(self, given: MoERouterInput) -> tuple[torch.Tensor, torch.Tensor]:
        """See :meth:`AscendRouter.select_experts`."""
        return topk_routing(
            given.router_logits,
            self.bias,
            self.top_k,
            scoring=self.scoring,
            renormalize=self.renormalize,
            scale=self.scale,
        )


class AscendHashRouter:
    """The experts that a table gives for a token; the logits only weight them.

    Args:
        num_experts: experts to choose from.
        table: ``[V, top_k]`` integer, each in ``[0, num_experts)``.
        scoring: score of a logit.
        renormalize: make the weights of a row sum to 1 before scaling.
        scale: factor on the weights.

    Raises:
        InvalidInputError: a table entry outside the experts.
    """

    def __init__(
        self,
        num_experts: int,
        table: torch.Tensor,
        *,
        scoring: str = "sqrtsoftplus",
        renormalize: bool = True,
        scale: float = 1.0,
    ) -> None:
        if table.numel():
            low, high = (int(bound) for bound in table.aminmax())
            if low < 0 or high >= num_experts:
                raise InvalidInputError(
                    f"expert id {low if low < 0 else high} in the routing table",
                    f"there are {num_experts} experts",
                    "Check the checkpoint's routing table.",
                )
        self.num_experts = num_experts
        self.top_k = table.shape[1]
        self.table = table
        self.scoring = scoring
        self.renormalize = renormalize
        self.scale = scale

    def select_experts(self, given: MoERouterInput) -> tuple[torch.Tensor, torch.Tensor]:
        """See :meth:`AscendRouter.select_experts`.

        Raises:
            InvalidInputError: no token ids.
        """
        if given.token_ids is None:
            raise InvalidInputError(
                "token_ids=None", "the router looks experts up by token", "Pass the token ids."
            )
        return hash_routing(
            given.router_logits,
            given.token_ids,
            self.table,
            scoring=self.scoring,
            renormalize=self.renormalize,
            scale=self.scale,
        )
