"""Kimi-Linear's feed-forward blocks: one MLP, or sigmoid routing with routed and shared experts."""

from __future__ import annotations

import torch
from ascend_fused_moe.communication import AllGatherCommImpl
from ascend_fused_moe.expert_partition import ExpertPartition
from ascend_fused_moe.layers.routed_experts import AscendRoutedExperts
from ascend_fused_moe.pipeline import MoERouterInput
from ascend_fused_moe.routers import AscendRouter, create_ascend_fused_moe_router
from ascend_fused_moe.runner import AscendSharedExperts, SharedExpertParallelMode
from ascend_fused_moe.vllm.router import router_settings
from ascend_fused_moe.vllm.runner import VllmMoERunner
from ascend_ops_core.ops.linear import linear
from torch import nn

from ascend_models_kimi.kimi_linear.build import Build, parameter


class KimiMLP(AscendSharedExperts):
    """A gated MLP, of which every tensor-parallel rank has a slice.

    Args:
        build: what all layers share.
        part: channels of this rank.

    Attributes:
        w13: ``[2 * I, H]``, gate rows before up rows.
        w2: ``[H, I]``.
    """

    def __init__(self, build: Build, part: tuple[int, int]) -> None:
        hidden, inter = build.spec.hidden_size, part[1] - part[0]
        super().__init__(
            torch.empty(2 * inter, hidden, dtype=build.dtype),
            torch.empty(hidden, inter, dtype=build.dtype),
            build.groups,
            SharedExpertParallelMode.TENSOR_PARALLEL,
            activation=build.activation,
        )

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        """``[T, H]`` from ``hidden [T, H]``, summed over ranks."""
        return self.groups.tp.all_reduce(self.part2(self.part1(hidden)))


class KimiMoE(nn.Module):
    """Routed experts plus shared experts, reduced once.

    Args:
        build: what all layers share.
        param: its name in the model.

    Attributes:
        gate: ``[E, H]`` float32, since a rounded score can choose another expert.
        e_score_correction_bias: ``[E]`` float32, moves choices but not weights.
        router: chooses experts; the weights that it gives are scaled already.
        runner: brings tokens to the ranks of whole experts; None where every rank has all
            experts, or a slice of each, which then run with the shared ones.
    """

    def __init__(self, build: Build, param: str) -> None:
        super().__init__()
        spec, dtype = build.spec, build.dtype
        hidden, experts = spec.hidden_size, spec.num_experts
        self.groups = build.groups
        self.gate = parameter(experts, hidden)
        self.e_score_correction_bias = parameter(experts)
        self.router: AscendRouter = create_ascend_fused_moe_router(
            router_settings(spec), bias=self.e_score_correction_bias
        )
        whole = self.groups.expert_parallel
        self.experts = AscendRoutedExperts(
            experts,
            spec.expert_hidden_size,
            spec.moe_intermediate_size,
            dtype,
            **build.experts(f"{param}.experts"),
            activation=build.activation,
            ep_rank=self.groups.ep.rank_in_group,
            ep_ranks=self.groups.ep.world_size,
            tp_rank=0 if whole else self.groups.tp.rank_in_group,
            tp_ranks=1 if whole else self.groups.tp.world_size,
        )
        self.shared_experts: KimiMLP | None = None
        if spec.n_shared_experts:
            self.shared_experts = KimiMLP(build, build.shard.shared)
        self.runner: VllmMoERunner | None = None
        if whole:
            self.runner = VllmMoERunner(
                self.router,
                self.experts,
                AllGatherCommImpl(self.groups, ExpertPartition(experts, self.groups.ep.world_size)),
                shared_experts=self._beside_routed(),
            )

    def _beside_routed(self) -> KimiMLP | None:
        """Shared experts that run in one pass with the routed ones."""
        return self.shared_experts

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        """``[T, H]`` from ``hidden [T, H]``."""
        logits = linear(hidden.float(), self.gate)
        if self.runner is not None:
            out: torch.Tensor = self.runner(hidden, logits)
            return out
        weights, ids = self.route(logits)
        shared = None
        if self.shared_experts is not None:
            shared = self.shared_experts.w13, self.shared_experts.w2
        summed = self.experts.forward_tokens(hidden, weights, ids, shared)
        return self.groups.tp.all_reduce(summed)

    def route(self, logits: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Weights ``[T, k]`` and expert ids ``[T, k]`` from the gate's ``logits [T, E]``."""
        # Routers of scores read nothing but these, whatever the tokens are.
        return self.router.select_experts(MoERouterInput(logits, logits, None))
