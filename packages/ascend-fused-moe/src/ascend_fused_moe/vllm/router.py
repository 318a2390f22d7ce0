"""Routers from a model's configuration, and as vLLM's layers call them."""

from __future__ import annotations

from typing import Any

import torch
from ascend_ops_core.errors import InvalidInputError
from vllm.distributed.eplb.eplb_state import EplbLayerState
from vllm.model_executor.layers.fused_moe.config import RoutingMethodType
from vllm.model_executor.layers.fused_moe.router.base_router import BaseRouter

from ascend_fused_moe.pipeline import MoERouterInput
from ascend_fused_moe.routers import AscendRouter, RouterSettings

__all__ = ["VllmRouter", "router_settings"]

_EXPERTS = ("n_routed_experts", "num_experts", "num_local_experts")


def router_settings(config: Any) -> RouterSettings:
    """What a model's configuration says of its routers.

    Args:
        config: with Hugging Face's names: one of ``n_routed_experts``, ``num_experts`` and
            ``num_local_experts``, and ``num_experts_per_tok``; if it has them, ``scoring_func``,
            ``norm_topk_prob``, ``routed_scaling_factor``, ``n_group`` and ``topk_group``.

    Raises:
        InvalidInputError: it does not say how many experts there are, or how many a token visits.
    """
    experts = next((getattr(config, name, None) or 0 for name in _EXPERTS if _has(config, name)), 0)
    top_k = getattr(config, "num_experts_per_tok", None) or 0
    if not experts or not top_k:
        raise InvalidInputError(
            f"a config of {experts} experts, {top_k} for a token",
            f"routing needs one of {', '.join(_EXPERTS)}, and num_experts_per_tok",
            "Add them to config.json.",
        )
    given = {
        "scoring": getattr(config, "scoring_func", None),
        "renormalize": getattr(config, "norm_topk_prob", None),
        "scale": getattr(config, "routed_scaling_factor", None),
        "groups": getattr(config, "n_group", None),
        "top_groups": getattr(config, "topk_group", None),
    }
    return RouterSettings(
        experts, top_k, **{name: value for name, value in given.items() if value is not None}
    )


class VllmRouter(BaseRouter):
    """One of our routers in a layer of vLLM's, which takes it as ``router=``.

    Args:
        router: the router.
        eplb_state: of the layer, as vLLM's own routers take it.
    """

    def __init__(self, router: AscendRouter, eplb_state: EplbLayerState | None = None) -> None:
        super().__init__(router.top_k, router.num_experts, eplb_state)
        self.router = router

    @property
    def routing_method_type(self) -> RoutingMethodType:
        """One that no kernel of vLLM's takes upon itself."""
        return RoutingMethodType.Custom

    def _compute_routing(
        self,
        hidden_states: torch.Tensor,
        router_logits: torch.Tensor,
        indices_type: torch.dtype | None,
        *,
        input_ids: torch.Tensor | None = None,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        weights, ids = self.router.select_experts(
            MoERouterInput(hidden_states, router_logits, input_ids)
        )
        return weights, ids if indices_type is None else ids.to(indices_type)


def _has(config: Any, name: str) -> bool:
    return getattr(config, name, None) is not None
