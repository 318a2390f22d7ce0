"""What all blocks of a model are built from."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from ascend_fused_moe.checkpoint_quant import quant_of
from ascend_fused_moe.groups import ParallelGroups
from ascend_fused_moe.mlp import Activation, ActivationKind
from ascend_fused_moe.quantized_rules import WeightForms
from ascend_fused_moe.vllm.checkpoint_forms import checkpoint_forms, log_forms
from ascend_fused_moe.vllm.groups import vllm_groups
from ascend_ops_core.checkpoint.table import WeightTable
from ascend_ops_core.devices import current_facts
from ascend_ops_core.vllm.vocabulary import vocabulary_range
from torch import nn
from vllm.config import VllmConfig
from vllm.distributed import (
    get_tensor_model_parallel_rank,
    get_tensor_model_parallel_world_size,
)
from vllm.model_executor.layers.vocab_parallel_embedding import VocabParallelEmbedding

from ascend_models_kimi.kimi_linear.config import KimiLinearSpec
from ascend_models_kimi.kimi_linear.quantization import LAYER_RULES, restore_description
from ascend_models_kimi.kimi_linear.sharding import Shard

Table = Callable[[KimiLinearSpec, Shard], WeightTable]


class NoRotation(nn.Module):
    """The rotation of latent attention without any: by an angle of zero, which changes no bit.

    Args:
        tokens: rows of the largest step.
        channels: rotated channels of a head.
    """

    cos: torch.Tensor
    sin: torch.Tensor

    def __init__(self, tokens: int, channels: int) -> None:
        super().__init__()
        self.register_buffer(
            "cos", torch.ones(tokens, channels // 2, dtype=torch.float32), persistent=False
        )
        self.register_buffer(
            "sin", torch.zeros(tokens, channels // 2, dtype=torch.float32), persistent=False
        )

    def forward(self, tokens: int) -> tuple[torch.Tensor, torch.Tensor]:
        """``[T, R / 2]`` float32 each."""
        return self.cos[:tokens], self.sin[:tokens]


@dataclass(frozen=True)
class Build:
    """The same for every layer of a model.

    Attributes:
        spec: the model's config.
        shard: this rank's part.
        rotation: what all layers of latent attention share.
        dtype: dtype of the projections; norms and the router are float32.
        device: device family of the caches.
        drafts: most draft tokens of a step, for each of which a request has a state.
        groups: ranks of the experts; outputs of blocks are summed over its ``tp``.
        forms: in which form the checkpoint has which weight.
    """

    spec: KimiLinearSpec
    shard: Shard
    rotation: NoRotation
    dtype: torch.dtype
    device: str
    drafts: int
    groups: ParallelGroups
    forms: WeightForms

    @classmethod
    def of(
        cls,
        spec: KimiLinearSpec,
        vllm_config: VllmConfig,
        embedding: VocabParallelEmbedding,
        table: Table,
    ) -> Build:
        """For this process, whose part of the vocabulary ``embedding`` has already chosen.

        Args:
            spec: the model's config.
            vllm_config: the engine's config.
            embedding: the model's.
            table: of the model's tensors.
        """
        groups = vllm_groups(expert_parallel=vllm_config.parallel_config.enable_expert_parallel)
        captured = vllm_config.compilation_config.max_cudagraph_capture_size or 0
        shard = Shard.of(
            spec,
            get_tensor_model_parallel_world_size(),
            get_tensor_model_parallel_rank(),
            vocabulary_range(embedding),
            whole_experts=groups.expert_parallel,
        )
        restore_description(vllm_config.model_config.hf_config)
        forms = checkpoint_forms(table(spec, shard), vllm_config, LAYER_RULES)
        log_forms(forms, caches="latents and states keep the model's dtype and float32")
        return cls(
            spec,
            shard,
            NoRotation(
                max(vllm_config.scheduler_config.max_num_batched_tokens, captured),
                spec.qk_rope_head_dim,
            ),
            vllm_config.model_config.dtype,
            cache_family(),
            vllm_config.num_speculative_tokens,
            groups,
            forms,
        )

    def param_prefix(self, layer: int) -> str:
        """Name of a decoder layer's module in the model; MTP layers hold theirs as a block."""
        block = ".mtp_block" if layer >= self.spec.num_hidden_layers else ""
        return f"model.layers.{layer}{block}"

    def experts(self, module: str) -> dict[str, Any]:
        """How a layer's routed experts are stored, as arguments of ``AscendRoutedExperts``."""
        scheme = self.forms.experts(module)
        if scheme is None:
            return {}
        quant = quant_of(scheme, float_rows=self.device == "cpu")
        return {"quant": quant, "scale_dtype": scheme.format.scale_dtype}

    @property
    def activation(self) -> Activation:
        """Of every network of the model."""
        spec = self.spec
        if spec.situ_beta is None:
            return Activation()
        return Activation(
            ActivationKind.SITU, beta=spec.situ_beta, linear_beta=spec.situ_linear_beta
        )


def cache_family() -> str:
    """Device family of the caches for the platform that vLLM runs on."""
    from vllm.platforms import current_platform

    return current_facts().family if current_platform.device_type == "npu" else "cpu"


def parameter(*shape: int, dtype: torch.dtype = torch.float32) -> nn.Parameter:
    """An empty parameter that the checkpoint fills."""
    return nn.Parameter(torch.empty(*shape, dtype=dtype), requires_grad=False)
