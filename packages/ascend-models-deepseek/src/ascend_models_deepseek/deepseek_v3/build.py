"""What all blocks of a model are built from."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch
from ascend_attention.layers.context_parallel import ContextParallel
from ascend_attention.vllm.context_parallel import context_parallel
from ascend_fused_moe.checkpoint_quant import quant_of
from ascend_fused_moe.groups import ParallelGroups
from ascend_fused_moe.quantized_rules import WeightForms
from ascend_fused_moe.vllm.checkpoint_forms import checkpoint_forms, log_forms
from ascend_fused_moe.vllm.groups import vllm_groups
from ascend_ops_core.checkpoint.table import WeightTable
from ascend_ops_core.layers.rotary import ComplexExpRotaryEmbedding
from ascend_ops_core.vllm.vocabulary import vocabulary_range
from torch import nn
from vllm.config import VllmConfig
from vllm.distributed import (
    get_tensor_model_parallel_rank,
    get_tensor_model_parallel_world_size,
)
from vllm.model_executor.layers.vocab_parallel_embedding import VocabParallelEmbedding

from ascend_models_deepseek.deepseek_v3.architecture import Architecture
from ascend_models_deepseek.deepseek_v3.config import DeepseekV3Spec
from ascend_models_deepseek.deepseek_v3.latents import int8_latents
from ascend_models_deepseek.deepseek_v3.quantization import LAYER_RULES
from ascend_models_deepseek.deepseek_v3.sharding import Shard
from ascend_models_deepseek.deepseek_v4.build import cache_family, keeps_dtype, parameter

Table = Callable[[Architecture, DeepseekV3Spec, Shard], WeightTable]


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
        forms: in which form the checkpoint has which weight.
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
    forms: WeightForms
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
        table: Table,
    ) -> Build:
        """For this process, whose part of the vocabulary ``embedding`` has already chosen.

        Args:
            architecture: the model of the family.
            spec: its config.
            vllm_config: the engine's config.
            embedding: the model's.
            table: of the model's tensors.
        """
        groups = vllm_groups(expert_parallel=vllm_config.parallel_config.enable_expert_parallel)
        shard = Shard.of(
            spec,
            get_tensor_model_parallel_world_size(),
            get_tensor_model_parallel_rank(),
            vocabulary_range(embedding),
            whole_experts=groups.expert_parallel,
        )
        forms = checkpoint_forms(table(architecture, spec, shard), vllm_config, LAYER_RULES)
        family, keep_dtype = cache_family(), keeps_dtype(vllm_config)
        eight_bits = int8_latents(
            vllm_config, forms.cache, sparse=architecture.sparse, family=family
        )
        log_forms(
            forms,
            caches="latents are cached in int8, with scales that each row makes itself"
            if eight_bits
            else "latents are cached in the model's dtype, keys as the device family has them",
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
            family,
            vllm_config.cache_config.block_size,
            groups,
            vllm_config.scheduler_config.max_num_batched_tokens,
            forms,
            keep_dtype,
            eight_bits,
            context_parallel(vllm_config, shard.num_heads),
        )

    def param_prefix(self, layer: int) -> str:
        """Name of a decoder layer's module in the model; MTP layers hold theirs as a block."""
        block = ".block" if layer >= self.spec.num_hidden_layers else ""
        return f"model.layers.{layer}{block}"

    def weight(self, param: str, rows: int, columns: int) -> Any:
        """What holds a weight of a product: a parameter, or a ``QuantizedWeight``.

        Args:
            param: its name in the model.
            rows: of this rank's part.
            columns: of this rank's part.
        """
        return self.forms.held(param) or parameter(rows, columns, dtype=self.dtype)

    def hold(self, module: nn.Module, param: str, names: Iterable[str]) -> None:
        """Let a module of another package hold its weights as the checkpoint stores them.

        Args:
            module: has parameters of these names, and multiplies by them with
                :func:`ascend_ops_core.quantized_weights.weight.project`.
            param: its name in the model.
            names: of the parameters.
        """
        for name in names:
            held = self.forms.held(f"{param}.{name}")
            if held is not None:
                delattr(module, name)
                setattr(module, name, held)

    def experts(self, module: str) -> dict[str, Any]:
        """How a layer's routed experts are stored, as arguments of ``AscendRoutedExperts``."""
        scheme = self.forms.experts(module)
        if scheme is None:
            return {}
        quant = quant_of(scheme, float_rows=self.device == "cpu")
        return {"quant": quant, "scale_dtype": scheme.format.scale_dtype}
