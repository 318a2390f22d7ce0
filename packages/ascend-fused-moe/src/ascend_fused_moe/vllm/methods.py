"""What vLLM's own expert layers compute, by our operators."""

from __future__ import annotations

from typing import Any

import torch
from ascend_ops_core.errors import InvalidInputError
from vllm.model_executor.layers.fused_moe.activation import MoEActivation
from vllm.model_executor.layers.fused_moe.routed_experts import RoutedExperts
from vllm.model_executor.layers.fused_moe.unquantized_fused_moe_method import (
    UnquantizedFusedMoEMethod,
)

from ascend_fused_moe.dispatchers.permutation import permute, unpermute
from ascend_fused_moe.group_list import GroupList, GroupListKind
from ascend_fused_moe.mlp import (
    Activation,
    ActivationKind,
    MoEWeights,
    build_mlp_compute_input,
    unified_apply_mlp,
)
from ascend_fused_moe.ops.experts import fused_experts

__all__ = ["VllmUnquantizedFusedMoEMethod"]

_KINDS = {
    MoEActivation.SILU: ActivationKind.SWIGLU,
    MoEActivation.SWIGLUOAI: ActivationKind.SWIGLU_OAI,
    MoEActivation.SWIGLUOAI_UNINTERLEAVE: ActivationKind.CLIPPED_SWIGLU,
    MoEActivation.SWIGLUSTEP: ActivationKind.SWIGLU_STEP,
}


class VllmUnquantizedFusedMoEMethod(UnquantizedFusedMoEMethod):
    """Experts in the model's dtype, in the place of vLLM's method for them.

    Weights keep vLLM's names and layout, ``w13_weight [E, 2 * I, H]`` and ``w2_weight [E, H, I]``.
    What travels between ranks is left to vLLM's runner.
    """

    @property
    def is_monolithic(self) -> bool:
        """Whether it routes as well; the layer's router does."""
        return False

    @property
    def supports_eplb(self) -> bool:
        """Whether vLLM may move experts while it serves."""
        return False

    def create_weights(self, layer: RoutedExperts, *args: Any, **kwargs: Any) -> None:
        """Make vLLM's parameters.

        Raises:
            InvalidInputError: an activation that our networks do not have, or weights of the router
                on the input of experts.
        """
        _activation(layer)
        if layer.apply_router_weight_on_input:
            raise InvalidInputError(
                "apply_router_weight_on_input=True",
                "experts' outputs are weighted, not their inputs",
                "Serve this model on another device.",
            )
        super().create_weights(layer, *args, **kwargs)

    def process_weights_after_loading(self, layer: RoutedExperts) -> None:
        """Nothing: the operators take the weights as they are loaded."""

    def apply(
        self,
        layer: RoutedExperts,
        x: torch.Tensor,
        topk_weights: torch.Tensor,
        topk_ids: torch.Tensor,
        shared_experts: Any = None,
        shared_experts_input: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """``[T, H]``: the weighted sum over this rank's experts.

        Args:
            layer: holds the weights, and the map of experts to this rank's, where it has not all.
            x: ``[T, H]``; ``T`` may be 0.
            topk_weights: ``[T, k]``.
            topk_ids: ``[T, k]`` experts; negative for none.
            shared_experts: left to the runner.
            shared_experts_input: the same.
        """
        weights, activation = topk_weights.float(), _activation(layer)
        w13_bias, w2_bias = (getattr(layer, name, None) for name in ("w13_bias", "w2_bias"))
        plain = activation.kind is ActivationKind.SWIGLU and w13_bias is None
        if plain and layer.expert_map is None:
            given = layer.w13_weight, layer.w2_weight, weights, topk_ids.long(), activation.limit
            return fused_experts(x, *given)
        if not x.shape[0]:
            return torch.empty_like(x)
        experts = layer.w13_weight.shape[0]
        local = _local(topk_ids.long(), layer.expert_map)
        rows, index, counts = permute(x, local, experts)
        if rows.shape[0]:
            of_layer = MoEWeights(
                layer.w13_weight, layer.w2_weight, w13_bias=w13_bias, w2_bias=w2_bias
            )
            groups = GroupList(counts, GroupListKind.COUNTS)
            rows = unified_apply_mlp(
                build_mlp_compute_input(rows, groups, of_layer, activation=activation)
            )
        return unpermute(rows, index, weights)


def _activation(layer: RoutedExperts) -> Activation:
    kind = _KINDS.get(layer.activation)
    if kind is None:
        raise InvalidInputError(
            f"experts with activation {layer.activation.value!r}",
            f"known are {', '.join(one.value for one in _KINDS)}",
            "Serve this model on another device.",
        )
    constants = {"alpha": layer.swiglu_alpha, "bias": layer.swiglu_beta}
    given = {name: value for name, value in constants.items() if value is not None}
    return Activation(kind, layer.swiglu_limit, **given)


def _local(ids: torch.Tensor, expert_map: torch.Tensor | None) -> torch.Tensor:
    """Experts of this rank; -1 for those of others, and for none."""
    if expert_map is None:
        return ids
    return torch.where(ids < 0, -1, expert_map.long()[ids.clamp(min=0)])
