"""vLLM's runner of fused experts, whose routed part is this package's layer."""

from __future__ import annotations

from functools import cached_property
from typing import Any

import torch
from ascend_ops_core.devices import current_facts
from ascend_ops_core.errors import InvalidInputError
from vllm.config import get_current_vllm_config
from vllm.model_executor.layers.fused_moe.activation import MoEActivation
from vllm.model_executor.layers.fused_moe.runner.moe_runner import MoERunner
from vllm.model_executor.layers.fused_moe.runner.shared_experts import SharedExpertsOrder

from ascend_fused_moe.communication import CommLayer, MoECommMethods, MoECommType
from ascend_fused_moe.expert_partition import ExpertPartition
from ascend_fused_moe.experts_mlp import StackedExpertsMlp
from ascend_fused_moe.group_list import GroupList
from ascend_fused_moe.mlp import Activation, MoEWeights, build_mlp_compute_input, unified_apply_mlp
from ascend_fused_moe.mlp.lora import MoELoRAContext, RowsLoRA
from ascend_fused_moe.pipeline import MoERouterInput, MoETokenDispatchInput
from ascend_fused_moe.vllm.fused_moe.groups import groups_of_vllm, tokens_of_step
from ascend_fused_moe.vllm.fused_moe.lora import AscendLoRAExperts
from ascend_fused_moe.vllm.fused_moe.method import AscendUnquantizedFusedMoEMethod
from ascend_fused_moe.vllm.fused_moe.routers import router_of_vllm

__all__ = ["AscendFusedMoERunner"]


class AscendFusedMoERunner(MoERunner):
    """Prepare, route, dispatch, compute, combine and finalize, in vLLM's frame.

    vLLM sums outputs as its own runner does. Whether the routed one is whole must not change from
    step to step, since vLLM's compiled graphs contain the sums: with experts on several ranks it
    always is, and without, or where the model defers the sum, never.

    Raises:
        InvalidInputError: what the layer asks for is not here, named with its remedy.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._take()

    def _take(self) -> None:
        """Make what the routed part needs, or refuse the layer."""
        self._check()
        config = self.moe_config
        self.ascend_router = router_of_vllm(self.router)
        self.groups = groups_of_vllm(config.moe_parallel_config)
        self.partition = ExpertPartition(config.num_experts, self.groups.ep.world_size)
        self._eager = get_current_vllm_config().model_config is None or bool(
            get_current_vllm_config().model_config.enforce_eager
        )

    @cached_property
    def _methods(self) -> MoECommMethods:
        config = self.moe_config
        on_npu = next(self.routed_experts.parameters()).device.type == "npu"
        layer = CommLayer(
            hidden=config.hidden_dim,
            top_k=config.experts_per_token,
            experts=config.num_experts,
            dtype=config.in_dtype,
            ranks=self.groups.ep.world_size,
            sharing=self.groups.tp.world_size,
            facts=current_facts() if on_npu else None,
            captured=not self._eager,
            forced=MoECommType.ALLGATHER if self._by_all_gather else None,
        )
        return MoECommMethods(
            layer, self.groups, self.partition, sequence_parallel=config.is_sequence_parallel
        )

    @property
    def _by_all_gather(self) -> bool:
        # MC2 carries no adapters, and a rank may not know that another's tokens have some.
        return bool(self.moe_config.skip_final_all_reduce or self.moe_config.is_lora_enabled)

    @property
    def _fused_output_is_reduced(self) -> bool:
        whole = self.groups.expert_parallel and not self.moe_config.skip_final_all_reduce
        return whole or self.groups.tp.world_size == 1 or self.moe_config.is_sequence_parallel

    def _forward_impl(
        self,
        hidden_states: torch.Tensor,
        router_logits: torch.Tensor,
        shared_experts_input: torch.Tensor | None,
        input_ids: torch.Tensor | None = None,
    ) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]:
        if self.gate is not None:
            router_logits, _ = self.gate(hidden_states)
        lora = self._lora(hidden_states.shape[0])
        adapters = None if lora is None else lora.token_lora_mapping
        given = MoERouterInput(hidden_states, router_logits, input_ids, adapters=adapters)
        routed = self._routed(given, lora)
        if self._shared_experts is None:
            return routed
        self._maybe_apply_shared_experts(shared_experts_input, SharedExpertsOrder.NO_OVERLAP)
        return self._shared_experts.output, routed

    def _lora(self, rows: int) -> MoELoRAContext | None:
        kernel = self.routed_experts.quant_method.moe_kernel
        experts = None if kernel is None else kernel.fused_experts
        lora = experts.context(rows) if isinstance(experts, AscendLoRAExperts) else None
        if lora is None or self.groups.dp.world_size > 1 or not lora.token_lora_mapping.is_cpu:
            return lora
        # Looking costs nothing on a CPU, and replicas would have to agree.
        return lora if bool((lora.token_lora_mapping >= 0).any()) else None

    def _routed(self, given: MoERouterInput, lora: MoELoRAContext | None) -> torch.Tensor:
        shared_out = self.moe_config.is_sequence_parallel
        tokens = tokens_of_step(given.hidden_states, self.groups, shared_out)
        method = self._methods.for_tokens(max(tokens))
        prepared = method.prepare(given, tokens)
        rows = prepared.rows
        weights, ids = self.ascend_router.select_experts(rows)
        self._capture(ids)
        dispatched = MoETokenDispatchInput(
            rows.hidden_states,
            weights,
            self.partition.to_physical(ids),
            rows.active,
            rows.adapters,
            complete=rows.active is None,
        )
        result = method.fused_experts(dispatched, self._mlp, lora)
        routed = method.finalize(result.routed_out, prepared)
        if self._fused_output_is_reduced and not method.output_is_reduced:
            routed = self.groups.tp.all_reduce(routed)
        return routed

    def _capture(self, ids: torch.Tensor) -> None:
        capture = getattr(self.router, "capture_fn", None)
        if capture is None:
            return
        if self.groups.ranks > 1:
            raise InvalidInputError(
                "enable_return_routed_experts=True",
                f"{self.groups.ranks} ranks route each other's tokens",
                "Switch it off, or serve on one rank.",
            )
        capture(ids)

    def _mlp(
        self, rows: torch.Tensor, group_list: GroupList, lora: RowsLoRA | None = None
    ) -> torch.Tensor:
        experts = self.routed_experts
        limit = self.moe_config.swiglu_limit
        # Looked up at every call, since loading replaces parameters.
        w13, w2 = experts.w13_weight, experts.w2_weight
        if lora is None:
            return StackedExpertsMlp(w13, w2, limit)(rows, group_list)
        return unified_apply_mlp(
            build_mlp_compute_input(
                rows, group_list, MoEWeights(w13, w2), activation=Activation(limit=limit), lora=lora
            )
        )

    def _check(self) -> None:
        config, experts = self.moe_config, self.routed_experts
        placement = experts.expert_map_manager.placement_strategy
        for holds, value, limit, remedy in (
            (
                isinstance(experts.quant_method, AscendUnquantizedFusedMoEMethod),
                f"experts quantised by {type(experts.quant_method).__name__}",
                "the runner's experts are not quantised",
                "Serve the checkpoint without quantisation.",
            ),
            (
                config.activation is MoEActivation.SILU,
                f"activation {config.activation.value!r}",
                "experts here are gated by SiLU",
                "Use a model with it.",
            ),
            (not config.has_bias, "experts with biases", "there are none here", "Use others."),
            (
                not experts.apply_router_weight_on_input,
                "apply_router_weight_on_input=True",
                "outputs are weighted here",
                "Use a model that weights outputs.",
            ),
            (
                placement == "linear",
                f"expert_placement_strategy={placement!r}",
                "each rank has experts in a row",
                "Set it to 'linear'.",
            ),
            (not self.enable_dbo, "enable_dbo=True", "steps are not halved here", "Set it False."),
            (
                config.in_dtype == experts.params_dtype,
                f"weights of {experts.params_dtype}",
                f"tokens are of {config.in_dtype}",
                "Load them in the model's dtype.",
            ),
        ):
            if not holds:
                raise InvalidInputError(value, limit, remedy)
