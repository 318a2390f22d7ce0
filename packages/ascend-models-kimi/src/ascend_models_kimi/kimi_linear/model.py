"""Kimi-Linear and Kimi-K3's text model on vLLM: the layers and the class that vLLM loads."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import Any, ClassVar

import torch
from ascend_attention.state_caches import StateKind, kda_state
from ascend_attention.vllm.linear import STATE_COPY_FUNCTIONS
from ascend_ops_core.checkpoint.headers import check_headers
from ascend_ops_core.cpu_kernels import follow_torch_threads
from ascend_ops_core.layers.attention_residual import AttentionResidual
from ascend_ops_core.ops.norm import rms_norm
from ascend_ops_core.vllm.vocabulary import lm_head, vocab_embedding
from torch import nn
from vllm.config import VllmConfig
from vllm.model_executor.layers.logits_processor import LogitsProcessor
from vllm.model_executor.models.interfaces import (
    EagleModelMixin,
    HasInnerState,
    IsHybrid,
    SupportsEagle3,
)
from vllm.sequence import IntermediateTensors

from ascend_models_kimi.kimi_k3.decoder_layer import AscendKimiDecoderLayer, MixedStream
from ascend_models_kimi.kimi_linear.build import Build, parameter
from ascend_models_kimi.kimi_linear.config import KimiLinearSpec
from ascend_models_kimi.kimi_linear.decoder_layer import KimiBlocks, KimiDecoderLayer, Stream
from ascend_models_kimi.kimi_linear.validation import check_engine_config
from ascend_models_kimi.kimi_linear.weights import main_table, text_root

Hidden = torch.Tensor | tuple[torch.Tensor, list[torch.Tensor]]
"""Hidden states ``[T, H]``, with the streams that a draft reads where there is one."""


class AscendKimiLinearModel(nn.Module, EagleModelMixin):
    """Embedding and layers; the final norm is made of the rows that get logits alone.

    Args:
        spec: its config.
        vllm_config: the engine's config.
        prefix: prefix of the layers' names.
    """

    aux_hidden_state_layers: tuple[int, ...] = ()
    """Layers in front of which a draft reads the stream: on Kimi-K3's mixed stream the sum of the
    layers since the last block began, whatever the layer itself mixes it with."""

    def __init__(self, spec: KimiLinearSpec, vllm_config: VllmConfig, prefix: str) -> None:
        super().__init__()
        self.spec = spec
        self.embed_tokens = vocab_embedding(spec, vllm_config.model_config.dtype)
        root = text_root(vllm_config.model_config.hf_config)
        build = Build.of(spec, vllm_config, self.embed_tokens, partial(main_table, root=root))
        self.forms = build.forms
        self.rotation = build.rotation
        self.output_attn_res: AttentionResidual | None = None
        layer: type[KimiBlocks] = KimiDecoderLayer
        if spec.attn_res_block_size is not None:
            layer = AscendKimiDecoderLayer
            self.output_attn_res = AttentionResidual(
                spec.hidden_size, spec.rms_norm_eps, torch.float32
            )
        self.layers = nn.ModuleList(
            layer(build, i, f"{prefix}.layers.{i}") for i in range(spec.num_hidden_layers)
        )
        self.norm = parameter(spec.hidden_size)

    def forward(
        self, input_ids: torch.Tensor | None, inputs_embeds: torch.Tensor | None = None
    ) -> Hidden:
        """Hidden states ``[T, H]`` in front of the final norm.

        Args:
            input_ids: ``[T]``; read where there are no embeddings.
            inputs_embeds: ``[T, H]``, or None.

        Returns:
            ``[T, H]``; with auxiliary layers also the streams ``[T, H]`` in front of them.
        """
        follow_torch_threads()
        if inputs_embeds is None:
            assert input_ids is not None
            inputs_embeds = self.embed_tokens(input_ids)
        if self.output_attn_res is not None:
            return self._forward_attn_residual(inputs_embeds, self.output_attn_res)
        stream = Stream(None, inputs_embeds)
        read: list[torch.Tensor] = []
        for number, layer in enumerate(self.layers):
            if number in self.aux_hidden_state_layers:
                read.append(stream.sum())
            stream = layer(stream)
        if len(self.layers) in self.aux_hidden_state_layers:
            read.append(stream.sum())
        return (stream.sum(), read) if read else stream.sum()

    def _forward_attn_residual(self, embedded: torch.Tensor, output: AttentionResidual) -> Hidden:
        """The same on Kimi-K3's mixed stream."""
        block = self.spec.attn_res_block_size
        assert block is not None
        stream = MixedStream.begin(embedded, len(self.layers), block)
        read: list[torch.Tensor] = []
        for number, layer in enumerate(self.layers):
            if number in self.aux_hidden_state_layers:
                read.append(stream.sum())
            stream = layer(stream)
        if len(self.layers) in self.aux_hidden_state_layers:
            read.append(stream.sum())
        hidden = stream.mixed(output, len(stream.sums))[0]
        return (hidden, read) if read else hidden


class AscendKimiLinearForCausalLM(nn.Module, HasInnerState, IsHybrid, SupportsEagle3):
    """Kimi-Linear, or Kimi-K3's text model, as vLLM's ``KimiLinearForCausalLM``.

    A checkpoint that also has images can be served by it, without them.

    Raises:
        InvalidInputError: a config or an engine setting that the model cannot serve, before any
            weight is allocated.
        CheckpointError: from :meth:`load_weights`, listing every problem.
    """

    has_inner_state: ClassVar[bool] = True
    is_hybrid: ClassVar[bool] = True

    def __init__(self, *, vllm_config: VllmConfig, prefix: str = "") -> None:
        super().__init__()
        config = vllm_config.model_config.hf_config
        spec = KimiLinearSpec.from_config(config)
        check_engine_config(spec, vllm_config)
        self.config = vllm_config.model_config.hf_text_config
        self._source = vllm_config.model_config.model
        self.model = AscendKimiLinearModel(spec, vllm_config, "model")
        self.lm_head = lm_head(spec, vllm_config.model_config.dtype)
        self.logits_processor = LogitsProcessor(spec.vocab_size, scale=spec.logit_scale)

    @classmethod
    def get_mamba_state_shape_from_config(
        cls, vllm_config: VllmConfig
    ) -> tuple[tuple[int, ...], ...]:
        """Shapes of a layer's states on one rank, as vLLM asks before the model is built."""
        return layer_state(vllm_config).shapes

    @classmethod
    def get_mamba_state_dtype_from_config(cls, vllm_config: VllmConfig) -> tuple[torch.dtype, ...]:
        """Their dtypes."""
        return layer_state(vllm_config).dtypes

    @classmethod
    def get_mamba_state_copy_func(cls) -> tuple[Any, ...]:
        """How states move to the block of a cached prefix."""
        return STATE_COPY_FUNCTIONS

    def embed_input_ids(self, input_ids: torch.Tensor) -> torch.Tensor:
        """``[T, H]`` embeddings."""
        return self.model.embed_tokens(input_ids)

    def forward(
        self,
        input_ids: torch.Tensor | None,
        positions: torch.Tensor,
        intermediate_tensors: IntermediateTensors | None = None,
        inputs_embeds: torch.Tensor | None = None,
        **kwargs: Any,
    ) -> Hidden:
        """See :meth:`AscendKimiLinearModel.forward`; a draft continues from the hidden states."""
        hidden: Hidden = self.model(input_ids, inputs_embeds)
        return hidden

    def compute_logits(self, hidden_states: torch.Tensor) -> torch.Tensor | None:
        """Logits ``[T, V]``."""
        normed = rms_norm(hidden_states, self.model.norm, self.model.spec.rms_norm_eps)
        return self.logits_processor(self.lm_head, normed)

    def load_weights(self, weights: Iterable[tuple[str, torch.Tensor]]) -> set[str]:
        """Fill all parameters from tensors in the published naming."""
        table = self.model.forms.table
        check_headers(table, self._source)
        return table.load(self, weights)


def layer_state(vllm_config: VllmConfig) -> StateKind:
    """What a layer of KDA keeps of a request on one rank."""
    delta = KimiLinearSpec.from_config(vllm_config.model_config.hf_config).delta
    return kda_state(
        num_heads=delta.num_heads,
        head_dim=delta.head_dim,
        conv_width=delta.conv_width,
        dtype=vllm_config.model_config.dtype,
        ranks=vllm_config.parallel_config.tensor_parallel_size,
        drafts=vllm_config.num_speculative_tokens,
    )
