"""The data that flow through a layer, one type for each seam between its stages."""

from __future__ import annotations

from ascend_fused_moe.group_list import GroupList, GroupListKind
from ascend_fused_moe.pipeline.dispatch import (
    MoEAllGatherCombineMetadata,
    MoEAllToAllCombineMetadata,
    MoECombineMetadata,
    MoEMC2CombineMetadata,
    MoETokenDispatchInput,
    MoETokenDispatchOutput,
)
from ascend_fused_moe.pipeline.prepare import MoEPrepareOutput, MoERouterInput
from ascend_fused_moe.pipeline.result import FusedExpertsResult

__all__ = [
    "FusedExpertsResult",
    "GroupList",
    "GroupListKind",
    "MoEAllGatherCombineMetadata",
    "MoEAllToAllCombineMetadata",
    "MoECombineMetadata",
    "MoEMC2CombineMetadata",
    "MoEPrepareOutput",
    "MoERouterInput",
    "MoETokenDispatchInput",
    "MoETokenDispatchOutput",
]
