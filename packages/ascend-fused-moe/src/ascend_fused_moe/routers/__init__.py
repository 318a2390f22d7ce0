"""Routers: which experts the rows of a step visit."""

from __future__ import annotations

from ascend_fused_moe.routers.base import AscendRouter
from ascend_fused_moe.routers.forced import (
    ForcedRouter,
    build_force_eplb_topk,
    get_force_eplb_topk,
)
from ascend_fused_moe.routers.fused_topk import AscendFusedTopKRouter, AscendHashRouter

__all__ = [
    "AscendFusedTopKRouter",
    "AscendHashRouter",
    "AscendRouter",
    "ForcedRouter",
    "build_force_eplb_topk",
    "get_force_eplb_topk",
]
