"""DeepSeek-V4 on vLLM: the decoder stack and the class that vLLM loads."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, cast

import torch
from ascend_fused_moe.quantized_rules import finish_weights
from ascend_ops_core.checkpoint.headers import check_headers
from ascend_ops_core.cpu_kernels import follow_torch_threads
from ascend_ops_core.huge_pages import move_to_huge_pages
from ascend_ops_core.layers.hyper_connection import HyperHead
from ascend_ops_core.ops.norm import rms_norm
from ascend_ops_core.static_buffers import StaticBuffers
from ascend_ops_core.vllm.vocabulary import lm_head, vocab_embedding
from torch import nn
from vllm.config import VllmConfig
from vllm.model_executor.layers.logits_processor import LogitsProcessor
from vllm.model_executor.models.interfaces import EagleModelMixin, SupportsEagle3
from vllm.sequence import IntermediateTensors

from ascend_models_deepseek.deepseek_v4.build import Build, parameter
from ascend_models_deepseek.deepseek_v4.config import DeepseekV4Spec
from ascend_models_deepseek.deepseek_v4.decoder_layer import (
    DeepseekV2DecoderLayer,
    first_streams,
    run_decoder,
)
from ascend_models_deepseek.deepseek_v4.output_projection import quantize_loaded
from ascend_models_deepseek.deepseek_v4.validation import check_engine_config
from ascend_models_deepseek.deepseek_v4.weights import main_table

_MTP_HIDDEN = "mtp_hidden"


class DeepseekV4Model(nn.Module, EagleModelMixin):
    """Embedding, layers on residual streams, and the final collapse.

    Hidden states that a block draft reads are the streams' average, in front of the layers that
    ``aux_hidden_state_layers`` names.

    Args:
        spec: the model's config.
        vllm_config: the engine's config.
        prefix: prefix of the layers' names.
        buffers: where layers keep what graphs write.
    """

    aux_hidden_state_layers: tuple[int, ...] = ()

    def __init__(
        self, spec: DeepseekV4Spec, vllm_config: VllmConfig, prefix: str, buffers: StaticBuffers
    ) -> None:
        super().__init__()
        self.spec = spec
        self.embed_tokens = vocab_embedding(spec, vllm_config.model_config.dtype)
        build = Build.of(spec, vllm_config, self.embed_tokens, buffers, main_table)
        self.shard = build.shard
        self.forms = build.forms
        self.rotary = build.rotary
        self.layers = nn.ModuleList(
            DeepseekV2DecoderLayer(build, i, f"{prefix}.layers.{i}")
            for i in range(spec.num_hidden_layers)
        )
        self.hc_head = HyperHead(spec.hc_mult, spec.hidden_size, spec.hc_eps, spec.rms_norm_eps)
        self.norm = parameter(spec.hidden_size)

    def forward(
        self, input_ids: torch.Tensor, positions: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, list[torch.Tensor]]:
        """Final hidden states ``[T, H]``, and the streams ``[T, n, H]`` in front of the head.

        Also what a block draft reads, ``[T, H]`` for each of ``aux_hidden_state_layers``.
        """
        follow_torch_threads()
        rotation = self.rotary(positions)
        layers = list(cast(Sequence[DeepseekV2DecoderLayer], self.layers))
        # Held by nobody else, streams go when the next ones are there.
        held = [first_streams(self.embed_tokens(input_ids), self.spec.hc_mult)]
        aux, done = [], 0
        for number in sorted({*self.aux_hidden_state_layers, len(layers)}):
            if number > done:
                part = layers[done:number]
                held.append(run_decoder(part, held.pop(), input_ids, rotation))
                done = number
            if number in self.aux_hidden_state_layers:
                aux.append(held[0].mean(dim=1))
        streams = held[0]
        hidden = rms_norm(self.hc_head(streams), self.norm, self.spec.rms_norm_eps)
        return hidden, streams, aux


class AscendDeepseekV4ForCausalLM(nn.Module, SupportsEagle3):
    """DeepSeek-V4 as vLLM's ``DeepseekV4ForCausalLM``.

    Raises:
        InvalidInputError: a config or an engine setting that the model cannot serve, before any
            weight is allocated.
        CheckpointError: from :meth:`load_weights`, listing every problem.
    """

    def __init__(self, *, vllm_config: VllmConfig, prefix: str = "") -> None:
        super().__init__()
        config = vllm_config.model_config.hf_config
        spec = DeepseekV4Spec.from_config(config)
        check_engine_config(spec, vllm_config)
        self.config = config
        self._source = vllm_config.model_config.model
        dtype = vllm_config.model_config.dtype
        self.static_buffers = StaticBuffers()
        self.model = DeepseekV4Model(spec, vllm_config, "model", self.static_buffers)
        self.lm_head = lm_head(spec, dtype)
        self.logits_processor = LogitsProcessor(spec.vocab_size)
        self._mtp_hidden: torch.Tensor | None = None
        speculative = vllm_config.speculative_config
        self._keep_mtp_hidden = speculative is not None and speculative.method == "mtp"
        device = self.model.norm.device
        if self._keep_mtp_hidden and device.type != "cpu":
            # A graph writes where it wrote when it was captured, so the draft must read there.
            tokens = vllm_config.scheduler_config.max_num_batched_tokens
            width = spec.hc_mult * spec.hidden_size
            self.static_buffers.add(_MTP_HIDDEN, (tokens, width), dtype, device, every_step=False)

    def embed_input_ids(self, input_ids: torch.Tensor) -> torch.Tensor:
        """``[T, H]`` embeddings."""
        return self.model.embed_tokens(input_ids)

    def forward(
        self,
        input_ids: torch.Tensor,
        positions: torch.Tensor,
        intermediate_tensors: IntermediateTensors | None = None,
        inputs_embeds: torch.Tensor | None = None,
        **kwargs: Any,
    ) -> torch.Tensor | tuple[torch.Tensor, list[torch.Tensor]]:
        """Final hidden states ``[T, H]``, and those that a block draft reads if there are any."""
        hidden, streams, aux = self.model(input_ids, positions)
        if _MTP_HIDDEN in self.static_buffers:
            rows = positions.shape[0]
            self.static_buffers.fill(_MTP_HIDDEN, streams.flatten(1), step_rows=rows)
        elif self._keep_mtp_hidden:
            self._mtp_hidden = streams.flatten(1)
        return (hidden, aux) if aux else hidden

    def compute_logits(self, hidden_states: torch.Tensor) -> torch.Tensor | None:
        """Logits ``[T, V]``."""
        return self.logits_processor(self.lm_head, hidden_states)

    def get_mtp_target_hidden_states(self) -> torch.Tensor | None:
        """Streams ``[T, n * H]`` of the last forward, which the MTP draft continues.

        On a device there may be more rows, which are of no step.
        """
        if _MTP_HIDDEN in self.static_buffers:
            return self.static_buffers[_MTP_HIDDEN]
        return self._mtp_hidden

    def load_weights(self, weights: Iterable[tuple[str, torch.Tensor]]) -> set[str]:
        """Fill all parameters from tensors in the original naming."""
        table = self.model.forms.table
        check_headers(table, self._source)
        loaded = table.load(self, weights)
        finish_weights(self)
        quantize_loaded(self)
        move_to_huge_pages(self.parameters())
        return loaded
