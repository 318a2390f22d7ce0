"""The router that a model's configuration asks for."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from ascend_ops_core.devices import DeviceFacts
from ascend_ops_core.errors import InvalidInputError
from ascend_ops_core.support import Support, refuse

from ascend_fused_moe.ops.grouped_routing.npu import supports_grouped_topk_routing
from ascend_fused_moe.ops.routing.npu import supports_topk_routing
from ascend_fused_moe.routers.base import AscendRouter
from ascend_fused_moe.routers.forced import ForcedRouter
from ascend_fused_moe.routers.fused_topk import AscendFusedTopKRouter, AscendHashRouter
from ascend_fused_moe.routers.grouped_topk import AscendGroupedTopKRouter

__all__ = ["RouterSettings", "check_npu_moe_gating_top_k", "create_ascend_fused_moe_router"]


@dataclass(frozen=True)
class RouterSettings:
    """What a configuration says of a layer's router.

    Attributes:
        num_experts: experts to choose from.
        top_k: experts of each row.
        scoring: score of a logit, one of :data:`ascend_fused_moe.ops.routing.SCORING_FUNCTIONS`.
        renormalize: make the weights of a row sum to 1 before scaling.
        scale: factor on the weights.
        groups: number of groups; 1 for none.
        top_groups: groups of which a row takes experts.
        group_score: score of a group; None for the sum of two where there is a bias, as in
            DeepSeek-V3, else the highest, as in V2.
        forced_rows: rows of the largest step where experts are visited in turn, whatever the
            scores; None to route.
    """

    num_experts: int
    top_k: int
    scoring: str = "softmax"
    renormalize: bool = True
    scale: float = 1.0
    groups: int = 1
    top_groups: int = 1
    group_score: str | None = None
    forced_rows: int | None = None

    def score_of_groups(self, bias: torch.Tensor | None) -> str:
        """The score of a group that is meant."""
        return self.group_score or ("max" if bias is None else "top2")


def create_ascend_fused_moe_router(
    settings: RouterSettings,
    *,
    bias: torch.Tensor | None = None,
    table: torch.Tensor | None = None,
    device: torch.device | str = "cpu",
) -> AscendRouter:
    """Make the router: forced, by table, with groups, or plain, whichever of them comes first.

    Args:
        settings: of the layer.
        bias: ``[num_experts]``, or None.
        table: ``[V, top_k]``, the experts of each token; None to choose by scores.
        device: of the rows, for a forced router.

    Raises:
        InvalidInputError: settings that do not fit together.
    """
    weighting = {
        "scoring": settings.scoring,
        "renormalize": settings.renormalize,
        "scale": settings.scale,
    }
    if settings.forced_rows is not None:
        experts, rows = settings.num_experts, settings.forced_rows
        return ForcedRouter(experts, settings.top_k, rows, device)
    if table is not None:
        if bias is not None or table.shape[1] != settings.top_k:
            raise InvalidInputError(
                f"a table {list(table.shape)} and {'a' if bias is not None else 'no'} bias",
                f"a table alone chooses, top_k={settings.top_k} for each token",
                "Check the checkpoint's routing table.",
            )
        return AscendHashRouter(settings.num_experts, table, **weighting)  # type: ignore[arg-type]
    if settings.groups > 1:
        return AscendGroupedTopKRouter(
            settings.num_experts,
            settings.top_k,
            settings.groups,
            settings.top_groups,
            group_score=settings.score_of_groups(bias),
            bias=bias,
            **weighting,  # type: ignore[arg-type]
        )
    return AscendFusedTopKRouter(
        settings.num_experts,
        settings.top_k,
        bias=bias,
        **weighting,  # type: ignore[arg-type]
    )


def check_npu_moe_gating_top_k(
    facts: DeviceFacts,
    settings: RouterSettings,
    *,
    bias: torch.Tensor | None = None,
    table: torch.Tensor | None = None,
    dtype: torch.dtype = torch.float32,
) -> Support:
    """Whether torch_npu's gating operator is documented for a router, and why not.

    Where it is not, the router's Triton kernel runs.

    Args:
        facts: of the device.
        settings: of the layer.
        bias: the router's bias, or None.
        table: the router's table, or None.
        dtype: of the logits.
    """
    if settings.forced_rows is not None:
        return refuse("experts in turn, which no operator chooses")
    if table is not None:
        return refuse("a table, npu_moe_gating_top_k takes one with softmax and sigmoid alone")
    logits = torch.empty(1, settings.num_experts, dtype=dtype, device="meta")
    last = settings.renormalize, settings.scale
    if settings.groups > 1:
        groups = settings.groups, settings.top_groups, settings.scoring
        score = settings.score_of_groups(bias)
        return supports_grouped_topk_routing(
            facts, logits, bias, settings.top_k, *groups, score, *last
        )
    return supports_topk_routing(facts, logits, bias, settings.top_k, settings.scoring, *last)
