"""vLLM's fused experts on a CPU: this package's where it has them, vLLM's own kernels elsewhere."""

from __future__ import annotations

from importlib.util import find_spec

import torch
from ascend_ops_core.errors import InvalidInputError
from ascend_ops_core.huge_pages import move_to_huge_pages
from vllm.logger import init_logger
from vllm.model_executor.layers.fused_moe.routed_experts import RoutedExperts
from vllm.model_executor.layers.fused_moe.runner.moe_runner import MoERunner
from vllm.model_executor.layers.fused_moe.unquantized_fused_moe_method import (
    UnquantizedFusedMoEMethod,
)

from ascend_fused_moe.mlp.lora import MoELoRAContext
from ascend_fused_moe.ops.experts import fused_experts
from ascend_fused_moe.pipeline import MoERouterInput
from ascend_fused_moe.vllm.fused_moe.method import AscendUnquantizedFusedMoEMethod
from ascend_fused_moe.vllm.fused_moe.runner import AscendFusedMoERunner

__all__ = ["CpuFusedMoERunner", "CpuUnquantizedFusedMoEMethod"]

logger = init_logger(__name__)


class CpuUnquantizedFusedMoEMethod(AscendUnquantizedFusedMoEMethod):
    """Leaves the weights of a layer as they are if this package runs it, else to vLLM.

    Attributes:
        taken: whether this package runs the layer, which its runner says.
    """

    taken = False

    @property
    def is_monolithic(self) -> bool:
        """Whether experts are chosen inside, as vLLM's kernels for a CPU do."""
        return not self.taken and super(AscendUnquantizedFusedMoEMethod, self).is_monolithic

    def process_weights_after_loading(self, layer: RoutedExperts) -> None:
        """Move the weights to huge pages, where the system gives them; vLLM packs its own."""
        if self.taken:
            move_to_huge_pages(layer.parameters())
        else:
            UnquantizedFusedMoEMethod.process_weights_after_loading(self, layer)


class CpuFusedMoERunner(AscendFusedMoERunner):
    """This package's experts, and vLLM's runner for a layer that they cannot stand for.

    Why a layer is left to vLLM is logged once.

    Attributes:
        taken: whether this package runs the layer.
    """

    taken = False

    def _take(self) -> None:
        try:
            if find_spec("numba") is None:
                raise InvalidInputError(
                    "experts without numba",
                    "torch's definition is slower than vLLM's kernels",
                    "Install ascend-fused-moe[cpu-kernels].",
                )
            super()._take()
        except InvalidInputError as refusal:
            logger.warning_once("vLLM's own kernels run experts on this CPU: %s", refusal)
            return
        self.taken = self.routed_experts.quant_method.taken = True

    @property
    def _fused_output_is_reduced(self) -> bool:
        if self.taken:
            return super()._fused_output_is_reduced
        return bool(MoERunner._fused_output_is_reduced.fget(self))

    def _forward_impl(
        self,
        hidden_states: torch.Tensor,
        router_logits: torch.Tensor,
        shared_experts_input: torch.Tensor | None,
        input_ids: torch.Tensor | None = None,
    ) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]:
        run = (
            super()._forward_impl if self.taken else super(AscendFusedMoERunner, self)._forward_impl
        )
        return run(hidden_states, router_logits, shared_experts_input, input_ids)

    def _routed(self, given: MoERouterInput, lora: MoELoRAContext | None) -> torch.Tensor:
        groups = self.groups
        exchanged = groups.expert_parallel or groups.dp.world_size > 1
        if exchanged or lora is not None or self.moe_config.is_sequence_parallel:
            return super()._routed(given, lora)
        weights, ids = self.ascend_router.select_experts(given)
        self._capture(ids)
        experts = self.routed_experts
        return fused_experts(
            given.hidden_states,
            experts.w13_weight,
            experts.w2_weight,
            weights,
            ids,
            self.moe_config.swiglu_limit,
        )
