"""What all blocks of a model are built from."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from ascend_fused_moe.checkpoint_quant import quant_of
from ascend_fused_moe.groups import ParallelGroups
from ascend_fused_moe.quantized_rules import WeightForms
from ascend_fused_moe.vllm.checkpoint_forms import checkpoint_forms, log_forms
from ascend_fused_moe.vllm.groups import vllm_groups
from ascend_ops_core.checkpoint.table import WeightTable
from ascend_ops_core.devices import current_facts
from ascend_ops_core.static_buffers import StaticBuffers
from ascend_ops_core.vllm.vocabulary import vocabulary_range
from torch import nn
from vllm.config import ModelConfig, ParallelConfig, VllmConfig
from vllm.distributed import (
    get_tensor_model_parallel_rank,
    get_tensor_model_parallel_world_size,
)
from vllm.model_executor.layers.vocab_parallel_embedding import VocabParallelEmbedding

from ascend_models_deepseek.deepseek_v4.config import DeepseekV4Spec
from ascend_models_deepseek.deepseek_v4.output_projection import ProjectionBuild
from ascend_models_deepseek.deepseek_v4.quantization import LAYER_RULES
from ascend_models_deepseek.deepseek_v4.rotation import RotaryTables
from ascend_models_deepseek.deepseek_v4.sharding import Shard


@dataclass(frozen=True)
class Build:
    """The same for every layer of a model.

    Attributes:
        spec: the model's config.
        shard: this rank's part.
        rotary: tables shared by all layers.
        dtype: dtype of the projections; norms, sinks and hyper-connections are float32.
        tensor_parallel: block outputs are partial sums over the tensor-parallel group.
        device: device family of the cache table.
        block_tokens: tokens per compressed block.
        projection: what the output projections are built from.
        groups: ranks of the experts.
        forms: in which form the checkpoint has which weight.
        redundant_experts: replicas of routed experts in each layer, which are balanced by load;
            None where experts stay where they were loaded.
        keep_dtype: caches keep the model's dtype, whatever the device family fixes.
    """

    spec: DeepseekV4Spec
    shard: Shard
    rotary: RotaryTables
    dtype: torch.dtype
    tensor_parallel: bool
    device: str
    block_tokens: int
    projection: ProjectionBuild
    groups: ParallelGroups
    forms: WeightForms
    redundant_experts: int | None = None
    keep_dtype: bool = False

    @classmethod
    def of(
        cls,
        spec: DeepseekV4Spec,
        vllm_config: VllmConfig,
        embedding: VocabParallelEmbedding,
        buffers: StaticBuffers | None,
        table: Callable[[DeepseekV4Spec, Shard], WeightTable],
        stored: ModelConfig | None = None,
    ) -> Build:
        """For this process, whose part of the vocabulary ``embedding`` has already chosen.

        Args:
            spec: the model's config.
            vllm_config: the engine's config.
            embedding: the model's.
            buffers: the model's static buffers, to which layers add theirs; None for a model that
                no graph captures.
            table: of the model's tensors.
            stored: whose checkpoint they are in; None for the target's.
        """
        size = get_tensor_model_parallel_world_size()
        rank = get_tensor_model_parallel_rank()
        family, device = cache_family(), embedding.weight.device
        projection = ProjectionBuild.of(spec, vllm_config, family, buffers, device)
        groups = vllm_groups(expert_parallel=vllm_config.parallel_config.enable_expert_parallel)
        vocabulary = vocabulary_range(embedding)
        whole = groups.expert_parallel
        shard = Shard.of(spec, size, rank, vocabulary, projection.part, whole_experts=whole)
        forms = checkpoint_forms(table(spec, shard), vllm_config, LAYER_RULES, stored)
        log_forms(
            forms,
            slower="steps of few tokens run operator by operator, since the fused kernels read "
            "float weights"
            if family == "cpu"
            else "",
            caches="caches are stored as the device family has them",
        )
        return cls(
            spec,
            shard,
            RotaryTables(spec, vllm_config.model_config.max_model_len),
            vllm_config.model_config.dtype,
            size > 1,
            family,
            vllm_config.cache_config.block_size,
            projection,
            groups,
            forms,
            redundant_experts(vllm_config.parallel_config),
            keeps_dtype(vllm_config),
        )

    def param_prefix(self, layer: int) -> str:
        """Name of a decoder layer's module in the model; MTP layers hold theirs as a block."""
        block = ".block" if layer >= self.spec.num_hidden_layers else ""
        return f"model.layers.{layer}{block}"

    def weight(self, param: str, rows: int, columns: int) -> Any:
        """What holds a weight of a product: a parameter, or a ``QuantizedWeight``.

        Fused kernels read parameters of the model's dtype, and leave steps with others to the
        operators.

        Args:
            param: its name in the model.
            rows: of this rank's part.
            columns: of this rank's part.
        """
        held = self.forms.held(param)
        return held or parameter(rows, columns, dtype=self.dtype)

    def experts(self, module: str) -> dict[str, Any]:
        """How a layer's routed experts are stored, as arguments of ``AscendRoutedExperts``."""
        scheme = self.forms.experts(module)
        if scheme is None:
            return {}
        quant = quant_of(scheme, float_rows=self.device == "cpu")
        return {"quant": quant, "scale_dtype": scheme.format.scale_dtype}


def cache_family() -> str:
    """Device family of the cache table for the platform that vLLM runs on."""
    from vllm.platforms import current_platform

    return current_facts().family if current_platform.device_type == "npu" else "cpu"


def redundant_experts(parallel: ParallelConfig) -> int | None:
    """Replicas that each layer has room for, or None where experts are not balanced."""
    return parallel.eplb_config.num_redundant_experts if parallel.enable_eplb else None


def keeps_dtype(vllm_config: VllmConfig) -> bool:
    """Whether ``additional_config`` asks for caches in the model's dtype."""
    given = vllm_config.additional_config
    return isinstance(given, Mapping) and given.get("cache_dtype") == "model"


def parameter(*shape: int, dtype: torch.dtype = torch.float32) -> nn.Parameter:
    """An empty parameter that the checkpoint fills."""
    return nn.Parameter(torch.empty(*shape, dtype=dtype), requires_grad=False)
