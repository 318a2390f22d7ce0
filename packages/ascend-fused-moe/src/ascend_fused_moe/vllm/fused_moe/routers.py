"""vLLM's routers, by this package's operators."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from ascend_ops_core.errors import InvalidInputError
from vllm.model_executor.layers.fused_moe.router.custom_routing_router import CustomRoutingRouter
from vllm.model_executor.layers.fused_moe.router.fused_topk_bias_router import FusedTopKBiasRouter
from vllm.model_executor.layers.fused_moe.router.fused_topk_router import FusedTopKRouter
from vllm.model_executor.layers.fused_moe.router.grouped_topk_router import GroupedTopKRouter

from ascend_fused_moe.pipeline import MoERouterInput
from ascend_fused_moe.routers import (
    AscendRouter,
    RouterSettings,
    create_ascend_fused_moe_router,
)

__all__ = ["VllmRouter", "router_of_vllm"]


class VllmRouter:
    """A router of vLLM's that calls a function of the model.

    Args:
        router: of vLLM.
    """

    def __init__(self, router: Any) -> None:
        self._router = router
        self.num_experts = router.global_num_experts
        self.top_k = router.top_k

    def select_experts(self, given: MoERouterInput) -> tuple[torch.Tensor, torch.Tensor]:
        """See :meth:`ascend_fused_moe.routers.AscendRouter.select_experts`."""
        weights, ids = self._router.select_experts(
            given.hidden_states, given.router_logits, torch.int64, input_ids=given.token_ids
        )
        return weights.float(), ids


def router_of_vllm(router: Any) -> AscendRouter:
    """The same router by this package's operators, on which vLLM's have no kernels.

    Raises:
        InvalidInputError: a kind that has no equal here, redundant experts, or shared experts
            among the routed ones.
    """
    if router.eplb_state is not None:
        raise InvalidInputError(
            "enable_eplb=True", "vLLM's maps of replicas are not read here yet", "Switch it off."
        )
    if getattr(router, "num_fused_shared_experts", 0):
        raise InvalidInputError(
            f"{router.num_fused_shared_experts} shared experts among the routed ones",
            "they run beside them here",
            "Unset VLLM_ROCM_USE_AITER_FUSION_SHARED_EXPERTS.",
        )
    make = _KINDS.get(type(router))
    if make is None:
        raise InvalidInputError(
            f"router {type(router).__name__}",
            f"known are {', '.join(one.__name__ for one in _KINDS)}",
            "Give the layer one of these.",
        )
    return make(router)


def _fused(router: Any) -> AscendRouter:
    return create_ascend_fused_moe_router(
        RouterSettings(
            router.global_num_experts,
            router.top_k,
            scoring=router.scoring_func,
            renormalize=router.renormalize,
        )
    )


def _biased(router: Any) -> AscendRouter:
    return create_ascend_fused_moe_router(
        RouterSettings(
            router.global_num_experts,
            router.top_k,
            scoring=router.scoring_func,
            renormalize=router.renormalize,
            scale=router.routed_scaling_factor,
        ),
        bias=None if router._hash_indices_table is not None else router.e_score_correction_bias,
        table=router._hash_indices_table,
    )


def _grouped(router: Any) -> AscendRouter:
    return create_ascend_fused_moe_router(
        RouterSettings(
            router.global_num_experts,
            router.top_k,
            scoring=router.scoring_func,
            renormalize=router.renormalize,
            scale=router.routed_scaling_factor,
            groups=router.num_expert_group,
            top_groups=router.topk_group,
        ),
        bias=router.e_score_correction_bias,
    )


_KINDS: dict[type, Callable[[Any], AscendRouter]] = {
    FusedTopKRouter: _fused,
    FusedTopKBiasRouter: _biased,
    GroupedTopKRouter: _grouped,
    CustomRoutingRouter: VllmRouter,
}
