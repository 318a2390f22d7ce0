"""DeepSeek-V4's mixture of experts: hash or score routing, routed and shared experts."""

from __future__ import annotations

import torch
from ascend_fused_moe.layers.experts import RoutedExperts
from ascend_fused_moe.ops.routing import hash_routing, topk_routing
from ascend_ops_core.ops.linear import linear
from torch import nn
from vllm.distributed import tensor_model_parallel_all_reduce

from ascend_models_deepseek.deepseek_v4.build import Build


class DeepseekV2MLP(nn.Module):
    """Weights of DeepSeek-V4's shared experts, which run together with the routed ones.

    Args:
        hidden_size: ``H``.
        intermediate_size: ``I`` of this rank.
        dtype: dtype of the weights.

    Attributes:
        w13: ``[2 * I, H]``, gate rows before up rows.
        w2: ``[H, I]``.
    """

    def __init__(self, hidden_size: int, intermediate_size: int, dtype: torch.dtype) -> None:
        super().__init__()
        self.w13 = nn.Parameter(
            torch.empty(2 * intermediate_size, hidden_size, dtype=dtype), requires_grad=False
        )
        self.w2 = nn.Parameter(
            torch.empty(hidden_size, intermediate_size, dtype=dtype), requires_grad=False
        )


class DeepseekV4MoE(nn.Module):
    """Routed experts plus shared experts, reduced once.

    Args:
        build: what all layers share.
        layer: number of the layer; the first ``num_hash_layers`` route by token id.
    """

    def __init__(self, build: Build, layer: int) -> None:
        super().__init__()
        spec, shard, dtype = build.spec, build.shard, build.dtype
        hidden, experts = spec.hidden_size, spec.n_routed_experts
        self.top_k = spec.num_experts_per_tok
        self.scoring = spec.scoring_func
        self.renormalize = spec.norm_topk_prob
        self.scale = spec.routed_scaling_factor
        self.is_hash = spec.is_hash_layer(layer)
        self.tensor_parallel = build.tensor_parallel
        self.gate = nn.Parameter(torch.empty(experts, hidden, dtype=dtype), requires_grad=False)
        if self.is_hash:
            table = torch.empty(spec.vocab_size, self.top_k, dtype=torch.int32)
            self.tid2eid = nn.Parameter(table, requires_grad=False)
        else:
            self.gate_bias = nn.Parameter(
                torch.empty(experts, dtype=torch.float32), requires_grad=False
            )
        inter = shard.intermediate[1] - shard.intermediate[0]
        self.experts = RoutedExperts(experts, hidden, inter, dtype, spec.swiglu_limit)
        self.shared_experts = None
        if spec.n_shared_experts:
            shared = shard.shared_intermediate[1] - shard.shared_intermediate[0]
            self.shared_experts = DeepseekV2MLP(hidden, shared, dtype)

    def forward(self, hidden: torch.Tensor, input_ids: torch.Tensor) -> torch.Tensor:
        """``[T, H]`` from ``hidden [T, H]``; ``input_ids [T]`` choose experts in hash layers."""
        weights, ids = self.route(linear(hidden, self.gate), input_ids)
        shared = None
        if self.shared_experts is not None:
            shared = self.shared_experts.w13, self.shared_experts.w2
        out = self.experts(hidden, weights, ids, shared)
        return tensor_model_parallel_all_reduce(out) if self.tensor_parallel else out

    def route(
        self, logits: torch.Tensor, input_ids: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Weights ``[T, k]`` and expert ids ``[T, k]`` from the gate's ``logits [T, E]``."""
        if self.is_hash:
            return hash_routing(
                logits,
                input_ids,
                self.tid2eid,
                scoring=self.scoring,
                renormalize=self.renormalize,
                scale=self.scale,
            )
        return topk_routing(
            logits,
            self.gate_bias,
            self.top_k,
            scoring=self.scoring,
            renormalize=self.renormalize,
            scale=self.scale,
        )
