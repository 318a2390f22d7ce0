"""vLLM's adapters of experts, for :class:`.runner.AscendFusedMoERunner`.

vLLM (0.27.1, ``lora/layers/fused_moe.py``) wraps a runner of experts, stacks the adapters' factors,
and hands them with every token's adapter to what the experts' method calls its kernel. Here that is
a holder: the runner takes them along with the rows.
"""

from __future__ import annotations

from typing import Any, NoReturn

import torch
from ascend_ops_core.errors import InvalidInputError
from torch.nn import functional as F
from vllm.model_executor.layers.fused_moe.activation import MoEActivation
from vllm.model_executor.layers.fused_moe.experts.lora_context import (
    MoELoRAContext as VllmLoRAContext,
)
from vllm.model_executor.layers.fused_moe.experts.lora_experts_mixin import LoRAExpertsMixin
from vllm.model_executor.layers.fused_moe.modular_kernel import (
    FusedMoEActivationFormat,
    FusedMoEExpertsModular,
)

from ascend_fused_moe.mlp.lora import MoELoRAContext

__all__ = ["AscendLoRAExperts"]


class AscendLoRAExperts(LoRAExpertsMixin, FusedMoEExpertsModular):
    """Holds what vLLM says of a layer's adapters; it computes nothing.

    Args:
        moe_config: of the layer.
        quant_config: of the layer.

    Raises:
        InvalidInputError: experts that ranks do not share evenly, of which vLLM loads the wrong
            ones (it takes a rank's number times its own number of experts for its first).
    """

    def __init__(self, moe_config: Any, quant_config: Any) -> None:
        super().__init__(moe_config, quant_config)
        ranks = moe_config.moe_parallel_config.ep_size
        if moe_config.num_experts % ranks:
            raise InvalidInputError(
                f"adapters of {moe_config.num_experts} experts on {ranks} ranks",
                "vLLM loads adapters for ranks with the same number of experts",
                "Use a number of ranks that divides the experts, or no expert parallelism.",
            )

    def set_lora_context(self, ctx: VllmLoRAContext) -> None:
        """Take the stacks of a layer, which vLLM fills later where they lie.

        Raises:
            InvalidInputError: factors that are sharded, or of another dtype than the tokens.
        """
        if ctx.fully_sharded:
            raise InvalidInputError(
                "fully_sharded_loras=True",
                "each rank multiplies by whole factors of the experts' adapters here",
                "Set it to False.",
            )
        dtype, tokens = ctx.w2_lora_a_stacked[0].dtype, self.moe_config.in_dtype
        if dtype != tokens:
            raise InvalidInputError(
                f"lora_dtype of {dtype}", f"tokens are of {tokens}", "Leave it at 'auto'."
            )
        super().set_lora_context(ctx)

    def context(self, rows: int) -> MoELoRAContext | None:
        """The adapters, and each row's of them; None before vLLM has given them.

        Args:
            rows: of this rank; rows beyond vLLM's tokens are padding and have no adapter.
        """
        given = self._lora_context
        if given is None:
            return None
        mapping = given.punica_wrapper.token_lora_indices[:rows]
        return MoELoRAContext(
            given.w13_lora_a_stacked,
            given.w13_lora_b_stacked,
            given.w2_lora_a_stacked,
            given.w2_lora_b_stacked,
            F.pad(mapping, (0, rows - mapping.shape[0]), value=-1),
        )

    @staticmethod
    def activation_format() -> FusedMoEActivationFormat:
        """Rows one after another."""
        return FusedMoEActivationFormat.Standard

    @staticmethod
    def _supports_current_device() -> bool:
        return True

    @staticmethod
    def _supports_no_act_and_mul() -> bool:
        return False

    @staticmethod
    def _supports_quant_scheme(weight_key: Any, activation_key: Any) -> bool:
        return weight_key is None and activation_key is None

    @staticmethod
    def _supports_activation(activation: MoEActivation) -> bool:
        return activation is MoEActivation.SILU

    @staticmethod
    def _supports_parallel_config(moe_parallel_config: Any) -> bool:
        return True

    def workspace_shapes(self, *args: object) -> NoReturn:
        """Refuse, as :meth:`apply`."""
        self._refuse()

    def finalize_weight_and_reduce_impl(self) -> NoReturn:
        """Refuse, as :meth:`apply`."""
        self._refuse()

    def apply(self, *args: torch.Tensor, **kwargs: object) -> NoReturn:
        """Refuse: the runner dispatches rows and runs experts and adapters."""
        self._refuse()

    def _refuse(self) -> NoReturn:
        raise InvalidInputError(
            f"experts called by {type(self).__name__}",
            "their runner dispatches rows, and runs experts and adapters",
            "Build the layer with AscendFusedMoERunner.",
        )
