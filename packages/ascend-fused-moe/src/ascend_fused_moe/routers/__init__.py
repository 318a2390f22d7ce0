"""Routers: which experts the rows of a step visit."""

from __future__ import annotations

from ascend_fused_moe.routers.base import AscendRouter
from ascend_fused_moe.routers.factory import (
    RouterSettings,
    check_npu_moe_gating_top_k,
    create_ascend_fused_moe_router,
)
from ascend_fused_moe.routers.forced import (
    ForcedRouter,
    build_force_eplb_topk,
    get_force_eplb_topk,
)
from ascend_fused_moe.routers.fused_topk import AscendFusedTopKRouter, AscendHashRouter
from ascend_fused_moe.routers.grouped_topk import AscendGroupedTopKRouter

__all__ = [
    "AscendFusedTopKRouter",
    "AscendGroupedTopKRouter",
    "AscendHashRouter",
    "AscendRouter",
    "ForcedRouter",
    "RouterSettings",
    "build_force_eplb_topk",
    "check_npu_moe_gating_top_k",
    "create_ascend_fused_moe_router",
    "get_force_eplb_topk",
]
