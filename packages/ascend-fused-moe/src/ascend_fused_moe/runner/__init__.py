"""The layer: routed and shared experts, and the sums over its ranks."""

from __future__ import annotations

from ascend_fused_moe.runner.gate import AscendGateLinear
from ascend_fused_moe.runner.moe_runner import AscendMoERunner
from ascend_fused_moe.runner.plans import FusedMoEEvents
from ascend_fused_moe.runner.shared_experts import AscendSharedExperts, SharedExpertParallelMode

__all__ = [
    "AscendGateLinear",
    "AscendMoERunner",
    "AscendSharedExperts",
    "FusedMoEEvents",
    "SharedExpertParallelMode",
]
