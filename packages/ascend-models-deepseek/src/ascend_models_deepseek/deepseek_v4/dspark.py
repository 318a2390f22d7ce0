"""DeepSeek-V4's DSpark draft: a block of places in one pass, then one small step for each.

The layers are the target's own kind, with a sliding window alone. Their context is made of the
target's hidden states: each layer projects them to its shared key-value rows, which are cached
before the block is run.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, cast

import torch
from ascend_attention.vllm.dsa.cache_layers import PagedCacheLayer
from ascend_fused_moe.quantized_rules import finish_weights
from ascend_ops_core.checkpoint.headers import check_headers
from ascend_ops_core.cpu_kernels import follow_torch_threads
from ascend_ops_core.huge_pages import move_to_huge_pages
from ascend_ops_core.layers.block_drafts import Choice, confidences, markov_drafts, places_of
from ascend_ops_core.layers.draft_heads import DSparkConfidenceHead, DSparkMarkovHead
from ascend_ops_core.layers.hyper_connection import HyperHead
from ascend_ops_core.ops.norm import rms_norm
from ascend_ops_core.quantized_weights.weight import project
from ascend_ops_core.vllm.block_drafts import check_block_target
from ascend_ops_core.vllm.vocabulary import lm_head, vocab_embedding
from torch import nn
from vllm.config import VllmConfig
from vllm.model_executor.layers.logits_processor import LogitsProcessor

from ascend_models_deepseek.deepseek_v4.build import Build, parameter
from ascend_models_deepseek.deepseek_v4.decoder_layer import (
    DeepseekV2DecoderLayer,
    first_streams,
    run_decoder,
)
from ascend_models_deepseek.deepseek_v4.dspark_config import DSparkSpec
from ascend_models_deepseek.deepseek_v4.dspark_weights import CONFIDENCE, dspark_table
from ascend_models_deepseek.deepseek_v4.output_projection import quantize_loaded

__all__ = ["DSparkDeepseekV4ForCausalLM", "DeepseekV4DSparkLayer", "DeepseekV4DSparkModel"]


class DeepseekV4DSparkLayer(nn.Module):
    """One decoder layer, and how the target's hidden states become its context.

    Args:
        build: what all layers share.
        layer: number of the layer, behind the target's.
        prefix: name of the layer, with its number.
    """

    def __init__(self, build: Build, layer: int, prefix: str) -> None:
        super().__init__()
        self.block = DeepseekV2DecoderLayer(build, layer, prefix)

    @property
    def cache(self) -> PagedCacheLayer:
        """Where its key-value rows lie."""
        return self.block.attn.dsa.window

    def project_shared_kv(
        self, states: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor
    ) -> torch.Tensor:
        """Key-value rows ``[T, D]`` of context ``states [T, H]``, normed and rotated."""
        return self.block.attn.shared_kv(states, cos, sin)

    def store_context(self, rows: torch.Tensor, slots: torch.Tensor) -> None:
        """Write ``rows [T, D]`` at ``slots [T]``; negative for rows that are not written."""
        self.block.attn.dsa.insert_rows(rows, slots)


class DeepseekV4DSparkModel(nn.Module):
    """Embedding, layers on residual streams, and the heads.

    Args:
        spec: the draft's config.
        vllm_config: the engine's config.

    Attributes:
        confidence_head: None where the checkpoint has none.
    """

    def __init__(self, spec: DSparkSpec, vllm_config: VllmConfig) -> None:
        super().__init__()
        main, dtype = spec.main, vllm_config.model_config.dtype
        speculative = vllm_config.speculative_config
        assert speculative is not None
        self.spec = spec
        self.embed_tokens = vocab_embedding(main, dtype)
        build = Build.of(
            main,
            vllm_config,
            self.embed_tokens,
            None,
            lambda _, shard: dspark_table(spec, shard),
            stored=speculative.draft_model_config,
        )
        self.forms = build.forms
        self.rotary = build.rotary
        hidden = spec.hidden_size
        joined = len(spec.target_layers) * spec.target_hidden_size
        self.main_proj = build.weight("model.main_proj", hidden, joined)
        self.main_norm = parameter(hidden)
        self.layers = nn.ModuleDict(
            {str(i): DeepseekV4DSparkLayer(build, i, f"model.layers.{i}") for i in spec.layers}
        )
        self.hc_head = HyperHead(main.hc_mult, hidden, main.hc_eps, main.rms_norm_eps)
        self.norm = parameter(hidden)
        self.markov_head = DSparkMarkovHead(
            spec.vocab_size, spec.vocab_size, spec.markov_rank, dtype
        )
        weight = torch.empty(1, hidden + spec.markov_rank)
        self.confidence_head: DSparkConfidenceHead | None = DSparkConfidenceHead(
            weight, None, hidden, spec.markov_rank
        )

    @property
    def draft_layers(self) -> Sequence[DeepseekV4DSparkLayer]:
        """In order."""
        return [cast(DeepseekV4DSparkLayer, layer) for layer in self.layers.values()]

    def combine_hidden_states(self, hidden_states: torch.Tensor) -> torch.Tensor:
        """Context ``[T, H]`` of the target's hidden states ``[T, m * H]``, layer by layer."""
        combined = project(hidden_states, self.main_proj)
        return rms_norm(combined, self.main_norm, self.spec.main.rms_norm_eps)

    def precompute_and_store_context_kv(
        self, states: torch.Tensor, positions: torch.Tensor, slots: Mapping[str, torch.Tensor]
    ) -> None:
        """Write the context's key-value rows, which the block's queries then find in the caches.

        Args:
            states: ``[T, H]`` of :meth:`combine_hidden_states`.
            positions: ``[T]``.
            slots: of each layer by the name of its cache, ``[T]``, since layers may lie in
                different groups of caches.
        """
        cos, sin = self.rotary(positions).main
        for layer in self.draft_layers:
            layer.store_context(
                layer.project_shared_kv(states, cos, sin), slots[layer.cache.prefix]
            )

    def forward(self, input_ids: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        """Hidden states ``[N, H]`` in front of the norm, of whole blocks."""
        follow_torch_threads()
        streams = run_decoder(
            [layer.block for layer in self.draft_layers],
            first_streams(self.embed_tokens(input_ids), self.spec.main.hc_mult),
            input_ids,
            self.rotary(positions),
        )
        return self.hc_head(streams)


class DSparkDeepseekV4ForCausalLM(nn.Module):
    """The draft as vLLM's ``DSparkDraftModel``.

    Attributes:
        spec: the draft's config.
        has_own_embed_tokens: the checkpoint carries an embedding for the draft; otherwise the
            target's is used.
        has_own_lm_head: the same for the head.

    Raises:
        InvalidInputError: a config that cannot be served, or does not belong to the target.
        CheckpointError: from :meth:`load_weights`, listing every problem.
    """

    has_own_embed_tokens = False
    has_own_lm_head = False

    def __init__(self, *, vllm_config: VllmConfig, prefix: str = "") -> None:
        super().__init__()
        speculative = vllm_config.speculative_config
        assert speculative is not None
        self.config = speculative.draft_model_config.hf_config
        self._source = speculative.draft_model_config.model
        self.spec = DSparkSpec.from_config(self.config)
        check_block_target(self.spec, vllm_config)
        self.model = DeepseekV4DSparkModel(self.spec, vllm_config)
        self.lm_head = lm_head(self.spec.main, vllm_config.model_config.dtype)
        self.logits_processor = LogitsProcessor(self.spec.vocab_size)

    def embed_input_ids(self, input_ids: torch.Tensor) -> torch.Tensor:
        """``[T, H]`` embeddings."""
        return self.model.embed_tokens(input_ids)

    def combine_hidden_states(self, hidden_states: torch.Tensor) -> torch.Tensor:
        """See :class:`DeepseekV4DSparkModel`."""
        return self.model.combine_hidden_states(hidden_states)

    def insert_context(
        self, states: torch.Tensor, positions: torch.Tensor, slots: Mapping[str, torch.Tensor]
    ) -> None:
        """See :meth:`DeepseekV4DSparkModel.precompute_and_store_context_kv`."""
        self.model.precompute_and_store_context_kv(states, positions, slots)

    def causal_layers(self) -> dict[str, bool]:
        """No layer is: a query sees those behind it. By the names of the caches."""
        return {layer.cache.prefix: False for layer in self.model.draft_layers}

    def forward(
        self, input_ids: torch.Tensor, positions: torch.Tensor, block: int, **kwargs: Any
    ) -> torch.Tensor:
        """Hidden states ``[R * block, H]`` of whole blocks, in front of the norm."""
        return self.model(input_ids, positions)

    def compute_logits(self, hidden_states: torch.Tensor) -> torch.Tensor:
        """Logits ``[T, V]`` without the Markov head's correction."""
        normed = rms_norm(hidden_states, self.model.norm, self.spec.main.rms_norm_eps)
        logits: torch.Tensor = self.logits_processor(self.lm_head, normed)
        return logits

    def map_draft_to_target(self, tokens: torch.Tensor) -> torch.Tensor:
        """The target's tokens of the draft's: the same ones, whatever the shape."""
        return tokens

    def draft(
        self, hidden: torch.Tensor, anchors: torch.Tensor, choice: Choice
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Choose a block's drafts; each place learns which token stands in front of it.

        Args:
            hidden: ``[R, Q, H]`` of the block's rows.
            anchors: ``[R]`` tokens that the target chose last.
            choice: how to choose.

        Returns:
            Tokens ``[R, K]``, and their laws ``[R, K, V]`` float32 where they are drawn.
        """
        places = places_of(hidden, self.spec.from_anchor)
        base = self.compute_logits(places.flatten(0, 1)).unflatten(0, places.shape[:2])
        head = self.model.markov_head
        return markov_drafts(base, anchors, head, choice, self.map_draft_to_target)

    def confidence(
        self, hidden: torch.Tensor, anchors: torch.Tensor, drafts: torch.Tensor
    ) -> torch.Tensor | None:
        """Probabilities ``[R, K]`` float32 that drafts stand; None without a confidence head.

        Args:
            hidden: ``[R, Q, H]`` of the block's rows.
            anchors: ``[R]``.
            drafts: ``[R, K]``, of :meth:`draft`.
        """
        head = self.model.confidence_head
        if head is None:
            return None
        places = places_of(hidden, self.spec.from_anchor)
        return confidences(places, anchors, drafts, self.model.markov_head, head)

    def load_weights(self, weights: Iterable[tuple[str, torch.Tensor]]) -> set[str]:
        """Fill the draft from the ``mtp.`` tensors of the target's checkpoint, or of its own."""
        table = self.model.forms.table
        check_headers(table, self._source)
        loaded = table.load(self, weights)
        if CONFIDENCE not in loaded:
            self.model.confidence_head = None
        finish_weights(self)
        quantize_loaded(self)
        move_to_huge_pages(self.parameters())
        self.has_own_embed_tokens = "model.embed_tokens.weight" in loaded
        self.has_own_lm_head = "lm_head.weight" in loaded
        return loaded
