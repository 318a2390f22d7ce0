"""How rows reach the ranks that hold their experts."""

from __future__ import annotations

from ascend_fused_moe.dispatchers.all_gather import TokenDispatcherWithAllGather
from ascend_fused_moe.dispatchers.all_to_all import TokenDispatcherWithAll2AllV
from ascend_fused_moe.dispatchers.base import MoETokenDispatcher
from ascend_fused_moe.dispatchers.mc2 import TokenDispatcherWithMC2

__all__ = [
    "MoETokenDispatcher",
    "TokenDispatcherWithAll2AllV",
    "TokenDispatcherWithAllGather",
    "TokenDispatcherWithMC2",
]
