"""DeepSeek-V4's mixture of experts: hash or score routing, routed and shared experts."""

from __future__ import annotations

import torch
from ascend_fused_moe.communication import AllGatherCommImpl
from ascend_fused_moe.eplb import initial_placement
from ascend_fused_moe.expert_partition import ExpertPartition
from ascend_fused_moe.groups import ParallelGroups
from ascend_fused_moe.layers.routed_experts import AscendRoutedExperts
from ascend_fused_moe.mlp import Activation
from ascend_fused_moe.pipeline import MoERouterInput
from ascend_fused_moe.routers import AscendRouter, create_ascend_fused_moe_router
from ascend_fused_moe.runner import AscendSharedExperts, SharedExpertParallelMode
from ascend_fused_moe.vllm.groups import own_rows
from ascend_fused_moe.vllm.router import router_settings
from ascend_fused_moe.vllm.runner import VllmMoERunner
from ascend_ops_core.ops.linear import linear
from ascend_ops_core.quantized_weights.weight import Weight
from torch import nn

from ascend_models_deepseek.deepseek_v4.build import Build


class DeepseekV2MLP(AscendSharedExperts):
    """DeepSeek-V4's shared experts; where a rank has all that it needs, routed ones run with them.

    Args:
        w13: ``[2 * I, H]`` of this rank, gate rows before up rows; it may be quantised.
        w2: ``[H, I]``, the same.
        groups: the layer's ranks, those of ``tp`` having slices.
        swiglu_limit: of the gated activation.
    """

    def __init__(
        self, w13: Weight, w2: Weight, groups: ParallelGroups, swiglu_limit: float | None
    ) -> None:
        super().__init__(
            w13,
            w2,
            groups,
            SharedExpertParallelMode.TENSOR_PARALLEL,
            swiglu_limit=swiglu_limit,
        )

    def forward_tokens(self, x: torch.Tensor) -> torch.Tensor:
        """``[T, H]`` from ``x [T, H]``; with tensor parallelism the results are to be summed."""
        return self.part2(self.part1(x))


class DeepseekV4MoE(nn.Module):
    """Routed experts plus shared experts, reduced once.

    Args:
        build: what all layers share.
        layer: number of the layer; the first ``num_hash_layers`` route by token id.

    Attributes:
        router: chooses experts.
        experts: this rank's routed experts, whole or a slice of each.
        runner: brings tokens to the ranks of whole experts; None where every rank has all
            experts, or a slice of each, which then run in one pass with the shared ones.
    """

    def __init__(self, build: Build, layer: int) -> None:
        super().__init__()
        spec, shard, dtype = build.spec, build.shard, build.dtype
        hidden, experts = spec.hidden_size, spec.n_routed_experts
        param = f"{build.param_prefix(layer)}.ffn"
        self.top_k = spec.num_experts_per_tok
        self.scoring = spec.scoring_func
        self.renormalize = spec.norm_topk_prob
        self.scale = spec.routed_scaling_factor
        self.is_hash = spec.is_hash_layer(layer)
        self.groups = build.groups
        self.gate = nn.Parameter(torch.empty(experts, hidden, dtype=dtype), requires_grad=False)
        if self.is_hash:
            # Zeros, since the router checks that experts of the table exist.
            table = torch.zeros(spec.vocab_size, self.top_k, dtype=torch.int32)
            self.tid2eid = nn.Parameter(table, requires_grad=False)
        else:
            self.gate_bias = nn.Parameter(
                torch.empty(experts, dtype=torch.float32), requires_grad=False
            )
        self.router: AscendRouter = create_ascend_fused_moe_router(
            router_settings(spec),
            bias=None if self.is_hash else self.gate_bias,
            table=self.tid2eid if self.is_hash else None,
        )
        whole, ranks = self.groups.expert_parallel, self.groups.ep.world_size
        redundant = build.redundant_experts or 0
        self.experts = AscendRoutedExperts(
            experts,
            hidden,
            spec.moe_intermediate_size,
            dtype,
            **build.experts(f"{param}.experts"),
            activation=Activation(limit=spec.swiglu_limit),
            ep_rank=self.groups.ep.rank_in_group,
            ep_ranks=ranks,
            tp_rank=0 if whole else self.groups.tp.rank_in_group,
            tp_ranks=1 if whole else self.groups.tp.world_size,
            placement=initial_placement(experts, ranks, redundant),
        )
        self.shared_experts: DeepseekV2MLP | None = None
        if spec.n_shared_experts:
            shared = shard.shared_intermediate[1] - shard.shared_intermediate[0]
            self.shared_experts = DeepseekV2MLP(
                build.weight(f"{param}.shared_experts.w13", 2 * shared, hidden),
                build.weight(f"{param}.shared_experts.w2", hidden, shared),
                self.groups,
                spec.swiglu_limit,
            )
        self.runner: VllmMoERunner | None = None
        if whole:
            self.runner = VllmMoERunner(
                self.router,
                self.experts,
                AllGatherCommImpl(self.groups, ExpertPartition(experts + redundant, ranks)),
                shared_experts=self.shared_experts,
                to_physical=None if build.redundant_experts is None else self._places,
            )

    def forward(self, hidden: torch.Tensor, input_ids: torch.Tensor) -> torch.Tensor:
        """``[T, H]`` from ``hidden [T, H]``; ``input_ids [T]`` choose experts in hash layers."""
        logits = linear(hidden, self.gate)
        if self.runner is not None:
            out: torch.Tensor = self.runner(hidden, logits, token_ids=input_ids)
            return out
        weights, ids = self.route(logits, input_ids)
        return self.groups.tp.all_reduce(self._forward_experts(hidden, weights, ids))

    def _forward_experts(
        self, hidden: torch.Tensor, weights: torch.Tensor, ids: torch.Tensor
    ) -> torch.Tensor:
        shared = self.shared_experts
        if shared is None:
            return self.experts.forward_tokens(hidden, weights, ids)
        w13, w2 = shared.w13, shared.w2
        if isinstance(w13, torch.Tensor) and isinstance(w2, torch.Tensor):
            return self.experts.forward_tokens(hidden, weights, ids, (w13, w2))
        routed = self.experts.forward_tokens(hidden, weights, ids)
        return routed + shared.forward_tokens(hidden)

    def _places(self, ids: torch.Tensor) -> torch.Tensor:
        return self.experts.to_physical(ids, own=own_rows(self.groups))

    def route(
        self, logits: torch.Tensor, input_ids: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Weights ``[T, k]`` and expert ids ``[T, k]`` from the gate's ``logits [T, E]``."""
        # Routers of scores read nothing but these, whatever the tokens are.
        return self.router.select_experts(MoERouterInput(logits, logits, input_ids))
