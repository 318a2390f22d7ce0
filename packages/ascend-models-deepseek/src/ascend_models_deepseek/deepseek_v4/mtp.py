"""DeepSeek-V4's multi-token prediction draft (paper section 2.1; V3 report section 2.2)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from ascend_fused_moe.quantized_rules import finish_weights
from ascend_ops_core.checkpoint.headers import check_headers
from ascend_ops_core.huge_pages import move_to_huge_pages
from ascend_ops_core.layers.hyper_connection import HyperHead
from ascend_ops_core.ops.norm import rms_norm
from ascend_ops_core.quantized_weights.weight import project
from ascend_ops_core.vllm.vocabulary import lm_head, vocab_embedding
from torch import nn
from vllm.config import VllmConfig
from vllm.model_executor.layers.logits_processor import LogitsProcessor
from vllm.sequence import IntermediateTensors

from ascend_models_deepseek.deepseek_v4.build import Build, parameter
from ascend_models_deepseek.deepseek_v4.config import DeepseekV4Spec
from ascend_models_deepseek.deepseek_v4.decoder_layer import DeepseekV2DecoderLayer
from ascend_models_deepseek.deepseek_v4.output_projection import quantize_loaded
from ascend_models_deepseek.deepseek_v4.rotation import StepRotation
from ascend_models_deepseek.deepseek_v4.validation import check_draft
from ascend_models_deepseek.deepseek_v4.weights import mtp_table


class DeepSeekMultiTokenPredictorLayer(nn.Module):
    """One prediction depth: the previous streams and the next token's embedding, then a layer.

    Args:
        build: what all layers share.
        layer: number of the layer, after the main ones.
        prefix: name of the layer, with its number.
    """

    def __init__(self, build: Build, layer: int, prefix: str) -> None:
        super().__init__()
        spec = build.spec
        hidden = spec.hidden_size
        self.norm_eps = spec.rms_norm_eps
        self.enorm = parameter(hidden)
        self.hnorm = parameter(hidden)
        self.e_proj = build.weight(f"{prefix}.e_proj", hidden, hidden)
        self.h_proj = build.weight(f"{prefix}.h_proj", hidden, hidden)
        self.block = DeepseekV2DecoderLayer(build, layer, prefix)
        self.hc_head = HyperHead(spec.hc_mult, hidden, spec.hc_eps, spec.rms_norm_eps)
        self.norm = parameter(hidden)

    def forward(
        self,
        embedded: torch.Tensor,
        input_ids: torch.Tensor,
        previous: torch.Tensor,
        rotation: StepRotation,
    ) -> torch.Tensor:
        """Streams ``[T, n, H]``.

        Args:
            embedded: ``[T, H]`` embeddings of the tokens.
            input_ids: ``[T]``.
            previous: ``[T, n, H]`` streams of the depth before.
            rotation: this step's rotation.
        """
        tokens, streams, hidden = previous.shape
        normed = rms_norm(previous.contiguous(), self.hnorm, self.norm_eps)
        mixed = project(normed.view(tokens * streams, hidden), self.h_proj).view_as(previous)
        own = project(rms_norm(embedded, self.enorm, self.norm_eps), self.e_proj)
        return self.block(mixed + own.unsqueeze(1), input_ids, rotation)

    def collapse(self, streams: torch.Tensor) -> torch.Tensor:
        """Normed hidden states ``[T, H]`` from streams ``[T, n, H]``."""
        return rms_norm(self.hc_head(streams), self.norm, self.norm_eps)


class DeepSeekMultiTokenPredictor(nn.Module):
    """All prediction depths; draft step ``i`` runs depth ``i`` modulo their number.

    Args:
        spec: the model's config.
        vllm_config: the engine's config.
    """

    def __init__(self, spec: DeepseekV4Spec, vllm_config: VllmConfig) -> None:
        super().__init__()
        self.spec = spec
        self.embed_tokens = vocab_embedding(spec, vllm_config.model_config.dtype)
        build = Build.of(spec, vllm_config, self.embed_tokens, None, mtp_table)
        self.forms = build.forms
        self.rotary = build.rotary
        first = spec.num_hidden_layers
        self.layers = nn.ModuleDict(
            {
                str(i): DeepSeekMultiTokenPredictorLayer(build, i, f"model.layers.{i}")
                for i in range(first, first + spec.num_mtp_layers)
            }
        )

    def depth(self, step: int) -> DeepSeekMultiTokenPredictorLayer:
        """The layer that draft step ``step`` runs."""
        layer = self.layers[str(self.spec.num_hidden_layers + step % self.spec.num_mtp_layers)]
        assert isinstance(layer, DeepSeekMultiTokenPredictorLayer)
        return layer

    def forward(
        self,
        input_ids: torch.Tensor,
        positions: torch.Tensor,
        previous: torch.Tensor,
        step: int,
    ) -> torch.Tensor:
        """Streams ``[T, n, H]`` of one depth."""
        rotation = self.rotary(positions)
        # No earlier hidden state predicts the first token, so training masks its embedding.
        embedded = self.embed_tokens(input_ids).masked_fill((positions == 0).unsqueeze(-1), 0)
        return self.depth(step)(embedded, input_ids, previous, rotation)


class DeepSeekV4MTP(nn.Module):
    """The draft as vLLM's ``DeepSeekV4MTPModel``.

    Attributes:
        has_own_embed_tokens: the checkpoint carries an embedding for the draft; otherwise vLLM
            shares the main model's.
        has_own_lm_head: the same for the head.
    """

    has_own_embed_tokens = False
    has_own_lm_head = False

    def __init__(self, *, vllm_config: VllmConfig, prefix: str = "") -> None:
        super().__init__()
        speculative = vllm_config.speculative_config
        assert speculative is not None
        spec = DeepseekV4Spec.from_config(speculative.draft_model_config.hf_config)
        check_draft(spec)
        self.config = speculative.draft_model_config.hf_config
        self._source = speculative.draft_model_config.model
        self.model = DeepSeekMultiTokenPredictor(spec, vllm_config)
        self.lm_head = lm_head(spec, vllm_config.model_config.dtype)
        self.logits_processor = LogitsProcessor(spec.vocab_size)

    def embed_input_ids(self, input_ids: torch.Tensor) -> torch.Tensor:
        """``[T, H]`` embeddings."""
        return self.model.embed_tokens(input_ids)

    def forward(
        self,
        input_ids: torch.Tensor,
        positions: torch.Tensor,
        hidden_states: torch.Tensor,
        intermediate_tensors: IntermediateTensors | None = None,
        inputs_embeds: torch.Tensor | None = None,
        spec_step_idx: int = 0,
        **kwargs: Any,
    ) -> torch.Tensor:
        """Streams ``[T, n * H]``, which the next draft step receives as ``hidden_states``."""
        spec = self.model.spec
        previous = hidden_states.view(-1, spec.hc_mult, spec.hidden_size)
        return self.model(input_ids, positions, previous, spec_step_idx).flatten(1)

    def compute_logits(
        self, hidden_states: torch.Tensor, spec_step_idx: int = 0
    ) -> torch.Tensor | None:
        """Logits ``[T, V]`` of streams ``[T, n * H]``."""
        spec = self.model.spec
        streams = hidden_states.view(-1, spec.hc_mult, spec.hidden_size)
        return self.logits_processor(
            self.lm_head, self.model.depth(spec_step_idx).collapse(streams)
        )

    def load_weights(self, weights: Iterable[tuple[str, torch.Tensor]]) -> set[str]:
        """Fill the draft from the ``mtp.`` tensors of the main model's checkpoint."""
        table = self.model.forms.table
        check_headers(table, self._source)
        loaded = table.load(self, weights)
        finish_weights(self)
        quantize_loaded(self)
        move_to_huge_pages(self.parameters())
        self.has_own_embed_tokens = "model.embed_tokens.weight" in loaded
        self.has_own_lm_head = "lm_head.weight" in loaded
        return loaded
