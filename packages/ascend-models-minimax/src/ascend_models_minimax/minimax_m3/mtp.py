"""MiniMax-M3's multi-token prediction."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from ascend_fused_moe.quantized_rules import finish_weights
from ascend_ops_core.checkpoint.headers import check_headers
from ascend_ops_core.cpu_kernels import follow_torch_threads
from ascend_ops_core.huge_pages import move_to_huge_pages
from ascend_ops_core.ops.linear import linear
from ascend_ops_core.ops.norm import rms_norm
from ascend_ops_core.vllm.vocabulary import lm_head, vocab_embedding
from torch import nn
from vllm.config import VllmConfig
from vllm.model_executor.layers.logits_processor import LogitsProcessor
from vllm.model_executor.models.interfaces import MultiModalEmbeddings
from vllm.model_executor.models.utils import _merge_multimodal_embeddings
from vllm.sequence import IntermediateTensors

from ascend_models_minimax.minimax_m3.build import Build, parameter
from ascend_models_minimax.minimax_m3.checkpoint import Checkpoint
from ascend_models_minimax.minimax_m3.config import MiniMaxM3Spec
from ascend_models_minimax.minimax_m3.decoder_layer import MiniMaxM3DecoderLayer, Stream
from ascend_models_minimax.minimax_m3.validation import check_draft
from ascend_models_minimax.minimax_m3.weights import mtp_table


class MiniMaxM3MultiTokenPredictorLayer(nn.Module):
    """One prediction depth: the next token's embedding beside the hidden state, then a layer.

    Args:
        build: what all layers share.
        layer: number of the layer, after the main ones.
        prefix: name of the layer, with its number.
    """

    def __init__(self, build: Build, layer: int, prefix: str) -> None:
        super().__init__()
        hidden = build.spec.hidden_size
        self.norm_eps = build.spec.rms_norm_eps
        self.enorm = parameter(hidden)
        self.hnorm = parameter(hidden)
        self.eh_proj = parameter(hidden, 2 * hidden, dtype=build.dtype)
        self.transformer_layer = MiniMaxM3DecoderLayer(build, layer, prefix)
        self.final_layernorm = parameter(hidden)

    def forward(
        self,
        embedded: torch.Tensor,
        previous: torch.Tensor,
        cos: torch.Tensor,
        sin: torch.Tensor,
    ) -> torch.Tensor:
        """``[T, H]`` in front of the head's norm, from which the next depth continues too.

        Args:
            embedded: ``[T, H]`` embeddings of the tokens.
            previous: ``[T, H]`` hidden states: the target's, normed, or what the depth before
                gave.
            cos: ``[T, R / 2]`` float32.
            sin: the same.
        """
        own = rms_norm(embedded, self.enorm, self.norm_eps)
        before = rms_norm(previous, self.hnorm, self.norm_eps)
        joined = linear(torch.cat([own, before], dim=-1), self.eh_proj)
        stream: Stream = self.transformer_layer(Stream(None, joined), cos, sin)
        return stream.sum()

    def head_input(self, hidden: torch.Tensor) -> torch.Tensor:
        """Normed hidden states, which the head reads."""
        return rms_norm(hidden, self.final_layernorm, self.norm_eps)


class MiniMaxM3MultiTokenPredictor(nn.Module):
    """Embedding and all prediction depths.

    Args:
        spec: the model's config.
        vllm_config: the engine's config.
        checkpoint: the engine's.

    Raises:
        CheckpointError: the checkpoint's description does not fit the model.
    """

    def __init__(
        self, spec: MiniMaxM3Spec, vllm_config: VllmConfig, checkpoint: Checkpoint
    ) -> None:
        super().__init__()
        self.spec = spec
        self.embed_tokens = vocab_embedding(spec, vllm_config.model_config.dtype)
        build = Build.of(
            spec,
            vllm_config,
            self.embed_tokens,
            checkpoint,
            lambda spec, shard, root, apart: mtp_table(spec, shard, root, apart=apart),
        )
        self.forms = build.forms
        self.rotary = build.rotary
        first = spec.num_hidden_layers
        self.layers = nn.ModuleDict(
            {
                str(i): MiniMaxM3MultiTokenPredictorLayer(build, i, f"model.layers.{i}")
                for i in range(first, first + spec.num_mtp_layers)
            }
        )

    def depth(self, step: int) -> MiniMaxM3MultiTokenPredictorLayer:
        """The layer that draft step ``step`` runs."""
        layer = self.layers[str(self.spec.num_hidden_layers + step % self.spec.num_mtp_layers)]
        assert isinstance(layer, MiniMaxM3MultiTokenPredictorLayer)
        return layer

    def forward(
        self,
        input_ids: torch.Tensor,
        positions: torch.Tensor,
        previous: torch.Tensor,
        inputs_embeds: torch.Tensor | None,
        step: int,
    ) -> torch.Tensor:
        """``[T, H]`` of one depth, in front of the head's norm."""
        follow_torch_threads()
        cos, sin = self.rotary.gather(positions)
        if inputs_embeds is None:
            inputs_embeds = self.embed_tokens(input_ids)
        # No earlier hidden state predicts the first token, so training masks its embedding.
        embedded = inputs_embeds.masked_fill((positions == 0).unsqueeze(-1), 0)
        hidden: torch.Tensor = self.depth(step)(embedded, previous, cos, sin)
        return hidden


class AscendMiniMaxM3MTP(nn.Module):
    """The draft as vLLM's ``MiniMaxM3MTP``; embedding and head are the target's.

    Raises:
        InvalidInputError: a model without draft layers.
        CheckpointError: from :meth:`load_weights`, listing every problem.
    """

    has_own_embed_tokens = False
    has_own_lm_head = False

    def __init__(self, *, vllm_config: VllmConfig, prefix: str = "") -> None:
        super().__init__()
        speculative = vllm_config.speculative_config
        assert speculative is not None
        target = speculative.target_model_config
        spec = MiniMaxM3Spec.from_config(target.hf_config)
        check_draft(spec)
        self.config = speculative.draft_model_config.hf_config
        self._source = speculative.draft_model_config.model
        self.model = MiniMaxM3MultiTokenPredictor(spec, vllm_config, Checkpoint(spec, target))
        self.lm_head = lm_head(spec, vllm_config.model_config.dtype)
        self.logits_processor = LogitsProcessor(spec.vocab_size)

    def embed_input_ids(
        self,
        input_ids: torch.Tensor,
        multimodal_embeddings: MultiModalEmbeddings | None = None,
        *,
        is_multimodal: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """``[T, H]`` embeddings, those of images and video in the places of their tokens.

        Args:
            input_ids: ``[T]``.
            multimodal_embeddings: of the images and videos, in order; None for text alone.
            is_multimodal: ``[T]`` bool, tokens that they belong to.
        """
        embedded: torch.Tensor = self.model.embed_tokens(input_ids)
        if multimodal_embeddings is None or not len(multimodal_embeddings):
            return embedded
        assert is_multimodal is not None
        return _merge_multimodal_embeddings(embedded, multimodal_embeddings, is_multimodal)

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
        """``[T, H]``, which the next draft step receives; :meth:`compute_logits` norms them."""
        hidden: torch.Tensor = self.model(
            input_ids, positions, hidden_states, inputs_embeds, spec_step_idx
        )
        return hidden

    def compute_logits(
        self, hidden_states: torch.Tensor, spec_step_idx: int = 0
    ) -> torch.Tensor | None:
        """Logits ``[T, V]`` of rows of what :meth:`forward` gave."""
        normed = self.model.depth(spec_step_idx).head_input(hidden_states)
        return self.logits_processor(self.lm_head, normed)

    def load_weights(self, weights: Iterable[tuple[str, torch.Tensor]]) -> set[str]:
        """Fill the draft from the MTP layers of the main model's checkpoint."""
        table = self.model.forms.table
        check_headers(table, self._source)
        loaded = table.load(self, weights)
        finish_weights(self)
        move_to_huge_pages(self.parameters())
        return loaded
