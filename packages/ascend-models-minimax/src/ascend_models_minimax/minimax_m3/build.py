"""What all blocks of a model are built from."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable
from dataclasses import dataclass
from typing import Any

import torch
from ascend_fused_moe.checkpoint_quant import quant_of
from ascend_fused_moe.groups import ParallelGroups
from ascend_fused_moe.mlp import Activation, ActivationKind
from ascend_fused_moe.quantized_rules import WeightForms
from ascend_fused_moe.vllm.checkpoint_forms import log_forms
from ascend_fused_moe.vllm.groups import vllm_groups
from ascend_ops_core.checkpoint.table import WeightTable
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

from ascend_models_minimax.minimax_m3.checkpoint import Checkpoint
from ascend_models_minimax.minimax_m3.config import MiniMaxM3Spec
from ascend_models_minimax.minimax_m3.sharding import Shard
from ascend_models_minimax.minimax_m3.weights import param_name

Table = Callable[[MiniMaxM3Spec, Shard, str, Container[int]], WeightTable]


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
        checkpoint: what the engine's checkpoint says of itself.
        forms: in which form it has which weight.
    """

    spec: MiniMaxM3Spec
    shard: Shard
    rotary: ComplexExpRotaryEmbedding
    dtype: torch.dtype
    device: str
    block_tokens: int
    groups: ParallelGroups
    checkpoint: Checkpoint
    forms: WeightForms

    @classmethod
    def of(
        cls,
        spec: MiniMaxM3Spec,
        vllm_config: VllmConfig,
        embedding: VocabParallelEmbedding,
        checkpoint: Checkpoint,
        table: Table,
    ) -> Build:
        """For this process, whose part of the vocabulary ``embedding`` has already chosen.

        Args:
            spec: the model's config.
            vllm_config: the engine's config.
            embedding: the model's.
            checkpoint: the engine's.
            table: of the model's tensors.

        Raises:
            CheckpointError: the checkpoint's description does not fit the model.
        """
        groups = vllm_groups(expert_parallel=vllm_config.parallel_config.enable_expert_parallel)
        shard = Shard.of(
            spec,
            get_tensor_model_parallel_world_size(),
            get_tensor_model_parallel_rank(),
            vocabulary_range(embedding),
            whole_experts=groups.expert_parallel,
        )
        forms = checkpoint.forms(lambda root, apart: table(spec, shard, root, apart))
        log_forms(forms, caches="keys and values are cached in the model's dtype")
        return cls(
            spec,
            shard,
            ComplexExpRotaryEmbedding(
                spec.rotary_dim, spec.rope_theta, vllm_config.model_config.max_model_len
            ),
            vllm_config.model_config.dtype,
            cache_family(),
            vllm_config.cache_config.block_size,
            groups,
            checkpoint,
            forms,
        )

    def param(self, layer: int) -> str:
        """Name of a decoder layer's module in the model."""
        return param_name(self.spec, layer)

    def weight(self, param: str, rows: int, columns: int) -> Any:
        """What holds a weight of a product: an empty tensor, or a ``QuantizedWeight``.

        Args:
            param: its name in the model.
            rows: of this rank's part.
            columns: of this rank's part.
        """
        return self.forms.held(param) or torch.empty(rows, columns, dtype=self.dtype)

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
