"""MiniMax-M3's feed-forward blocks: one MLP, or sigmoid routing with routed and shared experts."""

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
from ascend_ops_core.errors import InvalidInputError
from ascend_ops_core.ops.linear import linear
from torch import nn

from ascend_models_minimax.minimax_m3.build import Build, parameter


class MiniMaxM3MLP(AscendSharedExperts):
    """A gated MLP, of which every tensor-parallel rank has a slice.

    Args:
        build: what all layers share.
        param: its name in the model.
        part: channels of this rank.

    Attributes:
        w13: ``[2 * I, H]``, gate rows before up rows; it may be quantised.
        w2: ``[H, I]``, the same.
    """

    def __init__(self, build: Build, param: str, part: tuple[int, int]) -> None:
        hidden, inter = build.spec.hidden_size, part[1] - part[0]
        super().__init__(
            build.weight(f"{param}.w13", 2 * inter, hidden),
            build.weight(f"{param}.w2", hidden, inter),
            build.groups,
            SharedExpertParallelMode.TENSOR_PARALLEL,
            activation=build.activation,
        )

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        """``[T, H]`` from ``hidden [T, H]``, summed over ranks."""
        return self.groups.tp.all_reduce(self.forward_tokens(hidden))

    def forward_tokens(self, hidden: torch.Tensor) -> torch.Tensor:
        """The same before the sum over ranks."""
        return self.part2(self.part1(hidden))


class MiniMaxM3MoE(nn.Module):
    """Routed experts plus shared experts, reduced once.

    Args:
        build: what all layers share.
        param: its name in the model.

    Attributes:
        gate: ``[E, H]`` float32, since a rounded score can choose another expert.
        e_score_correction_bias: ``[E]`` float32, moves choices but not weights; None for models
            without one.
        router: chooses experts; the weights that it gives are scaled already.
        runner: brings tokens to the ranks of whole experts; None where every rank has all
            experts, or a slice of each, which then run with the shared ones.
    """

    def __init__(self, build: Build, param: str) -> None:
        super().__init__()
        spec, dtype = build.spec, build.dtype
        hidden, experts = spec.hidden_size, spec.num_local_experts
        self.groups = build.groups
        self.gate = parameter(experts, hidden)
        self.e_score_correction_bias = parameter(experts) if spec.use_routing_bias else None
        self.router: AscendRouter = create_ascend_fused_moe_router(
            router_settings(spec), bias=self.e_score_correction_bias
        )
        whole = self.groups.expert_parallel
        self.experts = AscendRoutedExperts(
            experts,
            hidden,
            spec.intermediate_size,
            dtype,
            **build.experts(f"{param}.experts"),
            activation=build.activation,
            ep_rank=self.groups.ep.rank_in_group,
            ep_ranks=self.groups.ep.world_size,
            tp_rank=0 if whole else self.groups.tp.rank_in_group,
            tp_ranks=1 if whole else self.groups.tp.world_size,
        )
        self.shared_experts: MiniMaxM3MLP | None = None
        if spec.shared_intermediate_size:
            self.shared_experts = MiniMaxM3MLP(build, f"{param}.shared_experts", build.shard.shared)
        self.runner: VllmMoERunner | None = None
        if whole:
            self.runner = VllmMoERunner(
                self.router,
                self.experts,
                AllGatherCommImpl(self.groups, ExpertPartition(experts, self.groups.ep.world_size)),
                shared_experts=self.shared_experts,
            )

    @staticmethod
    def ebias_weight_loader(param: nn.Parameter, loaded_weight: torch.Tensor) -> None:
        """Copy the router's bias, in float32 whatever the checkpoint has.

        Args:
            param: ``[E]``.
            loaded_weight: ``[E]``.

        Raises:
            InvalidInputError: another number of experts; nothing was changed.
        """
        if param.shape != loaded_weight.shape:
            raise InvalidInputError(
                f"e_score_correction_bias of shape {list(loaded_weight.shape)}",
                f"the layer has {param.shape[0]} experts",
                "Check that config.json and the checkpoint belong together.",
            )
        param.data.copy_(loaded_weight.to(torch.float32))

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        """``[T, H]`` from ``hidden [T, H]``."""
        logits = linear(hidden.float(), self.gate)
        if self.runner is not None:
            out: torch.Tensor = self.runner(hidden, logits)
            return out
        weights, ids = self.route(logits)
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

    def route(self, logits: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Weights ``[T, k]`` and expert ids ``[T, k]`` from the gate's ``logits [T, E]``."""
        # Routers of scores read nothing but these, whatever the tokens are.
        return self.router.select_experts(MoERouterInput(logits, logits, None))
