"""What balancing routed experts by load takes on a card, besides the replicas themselves."""

from __future__ import annotations

from ascend_fused_moe.eplb import EplbLayerMaps, initial_placement
from ascend_models_deepseek.deepseek_v4.config import DeepseekV4Spec
from ascend_ops_core.errors import InvalidInputError

from ascend_vllm_plugin.planning.estimates import Estimate
from ascend_vllm_plugin.planning.models import ModelSpec
from ascend_vllm_plugin.planning.weights import Layout

_COUNTERS = 4 + 8
"""Bytes of a place: tokens of this step (int32), and of the window (int64)."""


def check_balancing(spec: ModelSpec, layout: Layout) -> None:
    """Refuse to balance what is not balanced.

    Raises:
        InvalidInputError: a model whose experts stay where they are.
    """
    if layout.redundant is not None and not isinstance(spec, DeepseekV4Spec):
        raise InvalidInputError(
            f"redundant_experts={layout.redundant}",
            "of the models that are planned here only DeepSeek-V4's experts can be balanced",
            "Leave it unset.",
        )


def balancing(
    spec: ModelSpec, layout: Layout, expert_bytes: int, activation_bytes: int, *, draft: bool
) -> Estimate:
    """Maps, counters, and what a rebalance takes beyond the activations of a step.

    Args:
        spec: the model.
        layout: how it is spread.
        expert_bytes: routed experts of the main model on the fullest card.
        activation_bytes: free between two steps, when experts are moved.
        draft: whether MTP drafts, whose layer is balanced too.
    """
    if layout.redundant is None:
        return Estimate(0, "experts stay where they are")
    placement = initial_placement(spec.n_routed_experts, layout.expert, layout.redundant)
    maps = EplbLayerMaps(placement, 0, device="meta").nbytes
    layers = spec.num_hidden_layers + draft
    moved = 2 * expert_bytes // spec.num_hidden_layers
    return Estimate(
        layers * (maps + _COUNTERS * placement.places) + max(0, moved - activation_bytes),
        f"maps and counters of {layers} layers with {placement.places} places, and what it takes "
        f"to replace all experts of a layer, as they are to be and as they were ({moved} bytes), "
        "beyond the activations, which are free between two steps; not run on hardware",
    )
