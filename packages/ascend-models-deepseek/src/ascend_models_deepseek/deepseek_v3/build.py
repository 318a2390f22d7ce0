"""What all blocks of a model are built from."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from ascend_attention.layers.context_parallel import ContextParallel
from ascend_attention.vllm.context_parallel import context_parallel
from ascend_fused_moe.groups import ParallelGroups
from ascend_fused_moe.vllm.groups import vllm_groups
from ascend_ops_core.layers.rotary import ComplexExpRotaryEmbedding
from vllm.config import VllmConfig
from vllm.distributed import (
    get_tensor_model_parallel_rank,
    get_tensor_model_parallel_world_size,
)
from vllm.model_executor.layers.vocab_parallel_embedding import VocabParallelEmbedding

from ascend_models_deepseek.deepseek_v3.architecture import Architecture
from ascend_models_deepseek.deepseek_v3.config import DeepseekV3Spec
from ascend_models_deepseek.deepseek_v3.latents import int8_latents
from ascend_models_deepseek.deepseek_v3.sharding import Shard
from ascend_models_deepseek.deepseek_v4.build import cache_family, keeps_dtype
from ascend_models_deepseek.deepseek_v4.embedding import vocabulary_range


@dataclass(frozen=True)
class Build:
    """The same for every layer of a model.

    Attributes:
        architecture: the model of the family.
        spec: its config.
        shard: this rank's part.
        rotary: the table that all layers share.
        dtype: dtype of the projections; norms and the router are float32.
        device: device family of the cache table.
        block_tokens: tokens per block of the caches.
        groups: ranks of the experts; outputs of blocks are summed over its ``tp``.
        max_tokens: tokens of the largest step.
        keep_dtype: caches keep the model's dtype, whatever the device family fixes.
        int8_latents: latents are cached in eight bits.
        context: the exchanges with the ranks that share contexts, if any do.
    """

    architecture: Architecture
    spec: DeepseekV3Spec
    shard: Shard
    rotary: ComplexExpRotaryEmbedding
    dtype: torch.dtype
    device: str
    block_tokens: int
    groups: ParallelGroups
    max_tokens: int
    keep_dtype: bool = False
    int8_latents: bool = False
    context: ContextParallel | None = None

    @classmethod
    def of(
        cls,
        architecture: Architecture,
        spec: DeepseekV3Spec,
        vllm_config: VllmConfig,
        embedding: VocabParallelEmbedding,
    ) -> Build:
        """For this process, whose part of the vocabulary ``embedding`` has already chosen."""
        groups = vllm_groups(expert_parallel=vllm_config.parallel_config.enable_expert_parallel)
        shard = Shard.of(
            spec,
            get_tensor_model_parallel_world_size(),
            get_tensor_model_parallel_rank(),
            vocabulary_range(embedding),
            whole_experts=groups.expert_parallel,
        )
        return cls(
            architecture,
            spec,
            shard,
            ComplexExpRotaryEmbedding(
                spec.qk_rope_head_dim,
                spec.rope_theta,
                vllm_config.model_config.max_model_len,
                spec.yarn,
                spec.rope_table_scale,
            ),
            vllm_config.model_config.dtype,
            cache_family(),
            vllm_config.cache_config.block_size,
            groups,
            vllm_config.scheduler_config.max_num_batched_tokens,
            keeps_dtype(vllm_config),
            int8_latents(vllm_config),
            context_parallel(vllm_config, shard.num_heads),
        )
