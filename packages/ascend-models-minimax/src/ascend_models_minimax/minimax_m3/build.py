"""What all blocks of a model are built from."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from ascend_fused_moe.groups import ParallelGroups
from ascend_fused_moe.mlp import Activation, ActivationKind
from ascend_fused_moe.vllm.groups import vllm_groups
from ascend_ops_core.devices import current_facts
from ascend_ops_core.layers.rotary import ComplexExpRotaryEmbedding
from ascend_ops_core.vllm.vocabulary import vocabulary_range
from torch import nn
from vllm.config import VllmConfig
from vllm.distributed import (
    get_tensor_model_parallel_rank,
    get_tensor_model_parallel_world_size,
)
from vllm.model_executor.layers.vocab_parallel_embedding import VocabParallelEmbedding

from ascend_models_minimax.minimax_m3.config import MiniMaxM3Spec
from ascend_models_minimax.minimax_m3.sharding import Shard


@dataclass(frozen=True)
class Build:
    """The same for every layer of a model.

    Attributes:
        spec: the model's config.
        shard: this rank's part.
        rotary: the table that all layers share.
        dtype: dtype of the projections; norms and the router are float32.
        device: device family of the caches.
        block_tokens: tokens per block of the caches.
        groups: ranks of the experts; outputs of blocks are summed over its ``tp``.
    """

    spec: MiniMaxM3Spec
    shard: Shard
    rotary: ComplexExpRotaryEmbedding
    dtype: torch.dtype
    device: str
    block_tokens: int
    groups: ParallelGroups

    @classmethod
    def of(
        cls, spec: MiniMaxM3Spec, vllm_config: VllmConfig, embedding: VocabParallelEmbedding
    ) -> Build:
        """For this process, whose part of the vocabulary ``embedding`` has already chosen."""
        groups = vllm_groups(expert_parallel=vllm_config.parallel_config.enable_expert_parallel)
        return cls(
            spec,
            Shard.of(
                spec,
                get_tensor_model_parallel_world_size(),
                get_tensor_model_parallel_rank(),
                vocabulary_range(embedding),
                whole_experts=groups.expert_parallel,
            ),
            ComplexExpRotaryEmbedding(
                spec.rotary_dim, spec.rope_theta, vllm_config.model_config.max_model_len
            ),
            vllm_config.model_config.dtype,
            cache_family(),
            vllm_config.cache_config.block_size,
            groups,
        )

    @property
    def activation(self) -> Activation:
        """SwiGLU-OAI on halves, of every network of the model."""
        spec = self.spec
        return Activation(
            ActivationKind.CLIPPED_SWIGLU,
            limit=spec.swiglu_limit,
            alpha=spec.swiglu_alpha,
            bias=spec.swiglu_beta,
        )


def cache_family() -> str:
    """Device family of the caches for the platform that vLLM runs on."""
    from vllm.platforms import current_platform

    return current_facts().family if current_platform.device_type == "npu" else "cpu"


def parameter(*shape: int, dtype: torch.dtype = torch.float32) -> nn.Parameter:
    """An empty parameter that the checkpoint fills."""
    return nn.Parameter(torch.empty(*shape, dtype=dtype), requires_grad=False)
