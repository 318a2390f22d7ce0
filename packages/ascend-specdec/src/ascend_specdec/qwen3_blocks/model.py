"""The backbone that DFlash, DFlash2 and DSpark share, and DFlash itself."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, cast

import torch
from ascend_ops_core.layers.block_drafts import places_of
from torch import nn
from vllm.config import VllmConfig
from vllm.model_executor.layers.layernorm import RMSNorm
from vllm.model_executor.layers.linear import ReplicatedLinear
from vllm.model_executor.layers.logits_processor import LogitsProcessor
from vllm.model_executor.layers.vocab_parallel_embedding import (
    ParallelLMHead,
    VocabParallelEmbedding,
)
from vllm.model_executor.models.qwen2 import Qwen2MLP
from vllm.transformers_utils.config import set_default_rope_theta

from ascend_specdec.qwen3_blocks.attention import BlockDraftAttention
from ascend_specdec.qwen3_blocks.config import BlockDraftSpec
from ascend_specdec.qwen3_blocks.convolution import DFlashGroupedConv
from ascend_specdec.qwen3_blocks.validation import check_pair
from ascend_specdec.qwen3_blocks.weights import load_draft
from ascend_specdec.vllm.draft_choice import DraftChoice
from ascend_specdec.vllm.target_files import files_of_target

__all__ = ["AscendDFlashQwen3ForCausalLM", "BlockDraftLayer", "BlockDraftModel"]


class BlockDraftLayer(nn.Module):
    """One decoder layer.

    Args:
        config: transformers' config of the draft.
        spec: what it says about block drafting.
        vllm_config: the engine's config.
        layer: number of the layer, from 0.
        prefix: its name in vLLM, with a number behind the target's layers.
    """

    def __init__(
        self, config: Any, spec: BlockDraftSpec, vllm_config: VllmConfig, layer: int, prefix: str
    ) -> None:
        super().__init__()
        window = spec.windows[layer]
        self.self_attn = BlockDraftAttention(config, vllm_config, window, f"{prefix}.self_attn")
        self.mlp = Qwen2MLP(
            config.hidden_size,
            config.intermediate_size,
            config.hidden_act,
            prefix=f"{prefix}.mlp",
        )
        self.input_layernorm = RMSNorm(config.hidden_size, eps=config.rms_norm_eps)
        self.post_attention_layernorm = RMSNorm(config.hidden_size, eps=config.rms_norm_eps)
        self.attention_conv = self.mlp_conv = None
        if spec.convolution is not None:
            taps, group = spec.convolution.taps, spec.convolution.group
            dtype = vllm_config.model_config.dtype
            self.attention_conv = DFlashGroupedConv(config.hidden_size, taps, group, dtype)
            self.mlp_conv = DFlashGroupedConv(config.hidden_size, taps, group, dtype)

    def forward(self, positions: torch.Tensor, hidden: torch.Tensor, block: int) -> torch.Tensor:
        """``[N, H]`` of rows ``hidden [N, H]`` at ``positions [N]``, in blocks of ``block``."""
        normed = self.input_layernorm(hidden)
        if self.attention_conv is None:
            hidden = hidden + self.self_attn(positions, normed)
            return hidden + cast(torch.Tensor, self.mlp(self.post_attention_layernorm(hidden)))
        assert self.mlp_conv is not None
        read, coefficients = self.attention_conv.prepare(normed, block)
        attended = self.self_attn(positions, read)
        hidden = hidden + self.attention_conv.finish(attended, coefficients, block)
        read, coefficients = self.mlp_conv.prepare(self.post_attention_layernorm(hidden), block)
        return hidden + self.mlp_conv.finish(self.mlp(read), coefficients, block)


class BlockDraftModel(nn.Module):
    """Embedding, layers, and what turns the target's hidden states into context.

    Args:
        config: transformers' config of the draft.
        spec: what it says about block drafting.
        vllm_config: the engine's config.
        prefix: of the layers' names.
    """

    def __init__(
        self, config: Any, spec: BlockDraftSpec, vllm_config: VllmConfig, prefix: str
    ) -> None:
        super().__init__()
        set_default_rope_theta(config, default_theta=1000000)
        self.embed_tokens = VocabParallelEmbedding(config.vocab_size, config.hidden_size)
        # Attention layers are told apart by their number, so these follow the target's.
        first = vllm_config.model_config.get_num_layers(vllm_config.parallel_config)
        self.layers = nn.ModuleList(
            BlockDraftLayer(config, spec, vllm_config, i, f"{prefix}.layers.{first + i}")
            for i in range(config.num_hidden_layers)
        )
        self.fc = ReplicatedLinear(
            spec.target_hidden_size * len(spec.target_layers),
            config.hidden_size,
            bias=False,
            return_bias=False,
            prefix=f"{prefix}.fc",
        )
        self.hidden_norm = RMSNorm(config.hidden_size, eps=config.rms_norm_eps)
        self.norm = RMSNorm(config.hidden_size, eps=config.rms_norm_eps)
        self.embedding_scale = 1.0 if spec.selector is None else spec.selector.input_scale
        self.mask_token = spec.mask_token
        self.mask_embedding: nn.Parameter | None = None

    def embed(self, tokens: torch.Tensor) -> torch.Tensor:
        """``[N, H]`` of tokens ``[N]``; a checkpoint may bring a row of its own for the mask."""
        embedded: torch.Tensor = self.embed_tokens(tokens)
        if self.mask_embedding is not None:
            masked = (tokens == self.mask_token).unsqueeze(1)
            embedded = torch.where(masked, self.mask_embedding, embedded)
        return embedded if self.embedding_scale == 1.0 else embedded * self.embedding_scale

    def forward(self, tokens: torch.Tensor, positions: torch.Tensor, block: int) -> torch.Tensor:
        """Normed hidden states ``[N, H]`` of whole blocks."""
        hidden = self.embed(tokens)
        for layer in self.layers:
            hidden = layer(positions, hidden, block)
        normed: torch.Tensor = self.norm(hidden)
        return normed


class AscendDFlashQwen3ForCausalLM(nn.Module):
    """DFlash: a block of mask tokens, each of which predicts its own place.

    Attributes:
        has_own_embed_tokens: the checkpoint carries an embedding; otherwise the target's is used.
        has_own_lm_head: the same for the head.
        draft_to_target: ``[D]`` int64, the target's token of each token of a smaller head.

    Raises:
        InvalidInputError: a config that cannot be served, or does not belong to the target.
    """

    def __init__(self, *, vllm_config: VllmConfig, prefix: str = "") -> None:
        super().__init__()
        speculative = vllm_config.speculative_config
        assert speculative is not None
        self.draft_model_config = speculative.draft_model_config
        self.target_files = files_of_target(vllm_config)
        self.config = self.draft_model_config.hf_config
        self.spec = spec = BlockDraftSpec.from_config(self.config)
        check_pair(spec, vllm_config)
        self.model = BlockDraftModel(self.config, spec, vllm_config, prefix or "model")
        self.lm_head = ParallelLMHead(spec.draft_vocab_size, spec.hidden_size)
        self.logits_processor = LogitsProcessor(spec.draft_vocab_size, scale=spec.logit_scale)
        self.draft_to_target: torch.Tensor | None = None
        self.has_own_embed_tokens = self.has_own_lm_head = False

    def embed_input_ids(self, input_ids: torch.Tensor) -> torch.Tensor:
        """``[T, H]`` embeddings."""
        return self.model.embed(input_ids)

    def combine_hidden_states(self, hidden_states: torch.Tensor) -> torch.Tensor:
        """Context ``[T, H]`` of the target's hidden states ``[T, m * H]``, layer by layer."""
        combined: torch.Tensor = self.model.hidden_norm(self.model.fc(hidden_states))
        return combined

    def insert_context(
        self, states: torch.Tensor, positions: torch.Tensor, slots: Mapping[str, torch.Tensor]
    ) -> None:
        """Write the context's keys and values, which the block's queries then find in the caches.

        Args:
            states: ``[T, H]`` of :meth:`combine_hidden_states`.
            positions: ``[T]``.
            slots: of each layer by the name of its cache, ``[T]``.
        """
        for layer in self.model.layers:
            attention = cast(BlockDraftAttention, layer.self_attn)
            attention.insert_context(states, positions, slots[attention.attn.layer_name])

    def causal_layers(self) -> dict[str, bool]:
        """Whether each layer's queries do not see those behind them, by the name of its cache."""
        layers = [cast(BlockDraftAttention, layer.self_attn) for layer in self.model.layers]
        pairs = zip(layers, self.spec.causal, strict=True)
        return {layer.attn.layer_name: causal for layer, causal in pairs}

    def forward(
        self, input_ids: torch.Tensor, positions: torch.Tensor, block: int, **kwargs: Any
    ) -> torch.Tensor:
        """Normed hidden states ``[R * block, H]`` of whole blocks."""
        return self.model(input_ids, positions, block)

    def compute_logits(self, hidden_states: torch.Tensor) -> torch.Tensor:
        """Logits ``[T, D]`` in the draft's vocabulary."""
        logits: torch.Tensor = self.logits_processor(self.lm_head, hidden_states)
        return logits

    def draft(
        self, hidden: torch.Tensor, anchors: torch.Tensor, choice: DraftChoice
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Choose a block's drafts.

        Args:
            hidden: ``[R, Q, H]`` of the block's rows.
            anchors: ``[R]`` tokens that the target chose last.
            choice: how to choose.

        Returns:
            Tokens ``[R, K]``, and their laws ``[R, K, V]`` float32 where they are drawn.
        """
        places = places_of(hidden, self.spec.from_anchor)
        logits = self.compute_logits(places.flatten(0, 1)).unflatten(0, places.shape[:2])
        tokens, laws = choice.many(logits)
        return self.in_target(tokens), self.law_in_target(laws)

    def in_target(self, tokens: torch.Tensor) -> torch.Tensor:
        """The target's tokens of the draft's, any shape."""
        return tokens if self.draft_to_target is None else self.draft_to_target[tokens]

    def law_in_target(self, law: torch.Tensor | None) -> torch.Tensor | None:
        """A law ``[..., V]`` over the target's vocabulary, of one over the draft's ``[..., D]``."""
        if law is None or self.draft_to_target is None:
            return law
        wide = law.new_zeros(*law.shape[:-1], self.spec.vocab_size)
        return wide.index_add_(-1, self.draft_to_target, law)

    def load_weights(self, weights: Iterable[tuple[str, torch.Tensor]]) -> set[str]:
        """Fill all parameters; see :func:`ascend_specdec.qwen3_blocks.weights.load_draft`."""
        return load_draft(self, weights)
