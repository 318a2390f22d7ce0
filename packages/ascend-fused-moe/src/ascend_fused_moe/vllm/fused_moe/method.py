"""vLLM's weights of experts that are not quantised, left as they were loaded."""

from __future__ import annotations

import torch
from ascend_ops_core.errors import InvalidInputError
from vllm.model_executor.layers.fused_moe.modular_kernel import FusedMoEPrepareAndFinalizeModular
from vllm.model_executor.layers.fused_moe.routed_experts import RoutedExperts
from vllm.model_executor.layers.fused_moe.unquantized_fused_moe_method import (
    UnquantizedFusedMoEMethod,
)

from ascend_fused_moe.vllm.fused_moe.lora import AscendLoRAExperts

__all__ = ["AscendUnquantizedFusedMoEMethod"]


class AscendUnquantizedFusedMoEMethod(UnquantizedFusedMoEMethod):
    """Creates the weights; :class:`.runner.AscendFusedMoERunner` uses them."""

    @property
    def is_monolithic(self) -> bool:
        """False: experts are chosen outside."""
        return False

    def process_weights_after_loading(self, layer: RoutedExperts) -> None:
        """Keep the weights as the checkpoint has them, ``[E, 2I, H]`` and ``[E, H, I]``."""

    def maybe_make_prepare_finalize(self, routing_tables: object = None) -> None:
        """None: their runner shares tokens itself; vLLM asks where there are several ranks."""

    def select_gemm_impl(
        self, prepare_finalize: FusedMoEPrepareAndFinalizeModular, layer: RoutedExperts
    ) -> AscendLoRAExperts:
        """What vLLM gives the adapters of a layer to, which it asks of a method for LoRA alone."""
        return AscendLoRAExperts(self.moe, self.get_fused_moe_quant_config(layer))

    def apply(
        self, layer: RoutedExperts, x: torch.Tensor, *args: object, **kwargs: object
    ) -> torch.Tensor:
        """Refuse: vLLM's own runner would share tokens in another way than the weights lie."""
        raise InvalidInputError(
            f"experts of {layer.layer_name} called by {type(self).__name__}",
            "their runner dispatches rows and runs them",
            "Build the layer with AscendFusedMoERunner.",
        )
