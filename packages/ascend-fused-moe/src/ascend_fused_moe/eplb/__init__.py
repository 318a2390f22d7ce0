"""Expert-parallel load balancing: replicas of experts, their maps, their load, and moving them.

``ExpertPlacement`` says which place holds which expert, ``EplbLayerMaps`` keeps what follows on the
device, ``ExpertLoadWindow`` counts, ``plan_rebalance`` computes a better placement, and
``rebalance_layer`` puts it into effect on all ranks, or on none. ``EplbBalancer`` does all that for
the layers of a model, step by step.
"""

from __future__ import annotations

from ascend_fused_moe.eplb.balancer import BalancedLayer, EplbBalancer, RebalanceReport
from ascend_fused_moe.eplb.exchange import AloneExchange, Exchange, ProcessExchange
from ascend_fused_moe.eplb.load import ExpertLoadWindow
from ascend_fused_moe.eplb.maps import EplbLayerMaps
from ascend_fused_moe.eplb.placement import (
    EplbPlacementConfig,
    ExpertPlacement,
    initial_placement,
    placement_problems,
)
from ascend_fused_moe.eplb.plan import RebalancePlan, imbalance, plan_rebalance
from ascend_fused_moe.eplb.routing_table import (
    build_expert_replica_routing_table,
    routing_period,
)
from ascend_fused_moe.eplb.transaction import EplbLayer, RebalanceError, rebalance_layer
from ascend_fused_moe.eplb.weights import EplbExpertTensorList

__all__ = [
    "AloneExchange",
    "BalancedLayer",
    "EplbBalancer",
    "EplbExpertTensorList",
    "EplbLayer",
    "EplbLayerMaps",
    "EplbPlacementConfig",
    "Exchange",
    "ExpertLoadWindow",
    "ExpertPlacement",
    "ProcessExchange",
    "RebalanceError",
    "RebalancePlan",
    "RebalanceReport",
    "build_expert_replica_routing_table",
    "imbalance",
    "initial_placement",
    "placement_problems",
    "plan_rebalance",
    "rebalance_layer",
    "routing_period",
]
