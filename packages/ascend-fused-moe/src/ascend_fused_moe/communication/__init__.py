"""How tokens and results travel between the ranks that hold a layer's experts."""

from __future__ import annotations

from ascend_fused_moe.communication.methods import (
    AllGatherCommImpl,
    AlltoAllCommImpl,
    FusedMC2CommImpl,
    FusedMC2Operator,
    MC2CommImpl,
    MoECommMethod,
    MoECommType,
)
from ascend_fused_moe.communication.prepare_finalize import (
    PrepareAndFinalize,
    PrepareAndFinalizeWithAll2All,
    PrepareAndFinalizeWithAllGather,
    PrepareAndFinalizeWithMC2,
)
from ascend_fused_moe.communication.selection import (
    CommChoice,
    CommLayer,
    MoECommMethods,
    select_moe_comm_method,
)

__all__ = [
    "AllGatherCommImpl",
    "AlltoAllCommImpl",
    "CommChoice",
    "CommLayer",
    "FusedMC2CommImpl",
    "FusedMC2Operator",
    "MC2CommImpl",
    "MoECommMethod",
    "MoECommMethods",
    "MoECommType",
    "PrepareAndFinalize",
    "PrepareAndFinalizeWithAll2All",
    "PrepareAndFinalizeWithAllGather",
    "PrepareAndFinalizeWithMC2",
    "select_moe_comm_method",
]
