"""The experts' networks on rows that lie in the order of the experts.

Two grouped products with a gated activation between them; where the layer is quantised, rows are
quantised before each product. :func:`unified_apply_mlp` is what callers use.
"""

from __future__ import annotations

from ascend_fused_moe.mlp.activation import Activation, ActivationKind
from ascend_fused_moe.mlp.core import (
    is_clipped_swiglu,
    is_plain_swiglu,
    quant_apply_mlp,
    unified_apply_mlp,
    unquant_apply_mlp,
)
from ascend_fused_moe.mlp.data import MoEMlpComputeInput, MoEWeights, build_mlp_compute_input
from ascend_fused_moe.mlp.lora import MoELoRAContext, RowsLoRA
from ascend_fused_moe.mlp.plan import FUSIONS, FusionDecision, MlpPlan, plan_mlp

__all__ = [
    "FUSIONS",
    "Activation",
    "ActivationKind",
    "FusionDecision",
    "MlpPlan",
    "MoELoRAContext",
    "MoEMlpComputeInput",
    "MoEWeights",
    "RowsLoRA",
    "build_mlp_compute_input",
    "is_clipped_swiglu",
    "is_plain_swiglu",
    "plan_mlp",
    "quant_apply_mlp",
    "unified_apply_mlp",
    "unquant_apply_mlp",
]
