"""Multi-token prediction of DeepSeek-V3 and its kin (V3 report, section 2.2)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from ascend_attention.vllm.mla.latent_layer import fuse_prologues
from ascend_attention.vllm.sfa import DraftSelection, SFAAttention
from ascend_fused_moe.quantized_rules import finish_weights
from ascend_ops_core.checkpoint.headers import check_headers
from ascend_ops_core.cpu_kernels import follow_torch_threads
from ascend_ops_core.ops.linear import linear
from ascend_ops_core.ops.norm import rms_norm
from ascend_ops_core.vllm.vocabulary import lm_head, vocab_embedding
from torch import nn
from vllm.config import VllmConfig
from vllm.logger import init_logger
from vllm.model_executor.layers.logits_processor import LogitsProcessor
from vllm.sequence import IntermediateTensors

from ascend_models_deepseek.architectures import ARCHITECTURES
from ascend_models_deepseek.deepseek_v3.architecture import Architecture
from ascend_models_deepseek.deepseek_v3.build import Build
from ascend_models_deepseek.deepseek_v3.config import DeepseekV3Spec
from ascend_models_deepseek.deepseek_v3.decoder_layer import DeepseekV3DecoderLayer, Stream
from ascend_models_deepseek.deepseek_v3.validation import check_draft
from ascend_models_deepseek.deepseek_v3.weights import mtp_table
from ascend_models_deepseek.deepseek_v4.build import parameter

logger = init_logger(__name__)


class DeepSeekMultiTokenPredictorLayer(nn.Module):
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
        self.block = DeepseekV3DecoderLayer(build, layer, prefix)
        self.norm = parameter(hidden)

    def join(self, embedded: torch.Tensor, previous: torch.Tensor) -> torch.Tensor:
        """``[T, H]``, the input of the layer.

        Args:
            embedded: ``[T, H]`` embeddings of the tokens.
            previous: ``[T, H]`` normed hidden states, the target's or those of the depth before.
        """
        own = rms_norm(embedded, self.enorm, self.norm_eps)
        before = rms_norm(previous, self.hnorm, self.norm_eps)
        return linear(torch.cat([own, before], dim=-1), self.eh_proj)

    def forward(self, joined: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
        """``[T, H]`` in front of the head's norm.

        Args:
            joined: ``[T, H]`` of :meth:`join`.
            cos: ``[T, R / 2]`` float32.
            sin: the same.
        """
        stream: Stream = self.block(Stream(None, joined), cos, sin)
        return stream.sum()

    def head_input(self, hidden: torch.Tensor) -> torch.Tensor:
        """Normed hidden states, which the head reads and the next depth continues from."""
        return rms_norm(hidden, self.norm, self.norm_eps)


class DeepSeekMultiTokenPredictor(nn.Module):
    """All prediction depths; draft step ``i`` runs depth ``i`` modulo their number.

    Args:
        architecture: the model of the family.
        spec: its config.
        vllm_config: the engine's config.
    """

    def __init__(
        self, architecture: Architecture, spec: DeepseekV3Spec, vllm_config: VllmConfig
    ) -> None:
        super().__init__()
        self.spec = spec
        self.embed_tokens = vocab_embedding(spec, vllm_config.model_config.dtype)
        build = Build.of(architecture, spec, vllm_config, self.embed_tokens, mtp_table)
        self.forms = build.forms
        self.rotary = build.rotary
        first = spec.num_hidden_layers
        self.layers = nn.ModuleDict(
            {
                str(i): DeepSeekMultiTokenPredictorLayer(build, i, f"model.layers.{i}")
                for i in range(first, first + spec.num_mtp_layers)
            }
        )
        self.drafts = self._shared_selection(build)

    def set_skip_topk(self, skip: bool) -> None:
        """Let the steps that follow take over the first one's selection, or select themselves.

        vLLM's proposer calls it around the first step where the config has
        ``index_share_for_mtp_iteration``.
        """
        if self.drafts is not None:
            self.drafts.repeating = skip

    def compact_topk_indices(self, slot_ids: torch.Tensor) -> None:
        """Keep of the first step's selection what drafting goes on from; called by vLLM as well.

        Args:
            slot_ids: ``[R]`` integer, one row of each request.
        """
        if self.drafts is not None:
            self.drafts.narrow(slot_ids)

    def _shared_selection(self, build: Build) -> DraftSelection | None:
        """One for all depths, or None where every step selects."""
        if not getattr(self.spec, "index_share_for_mtp_iteration", False):
            return None
        if build.context is not None:
            logger.warning(
                "index_share_for_mtp_iteration: every draft step selects anew, since ranks share "
                "contexts and the rows that a step selects lie on several; tokens are the same"
            )
            return None
        drafts = DraftSelection()
        for attention in self.modules():
            if isinstance(attention, SFAAttention):
                attention.impl.drafts = drafts
        return drafts

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
        """``[T, H]`` of one depth, in front of the head's norm."""
        follow_torch_threads()
        cos, sin = self.rotary.gather(positions)
        # What the input is made of is not held while the layer runs.
        joined = self.depth(step).join(self._embedded(input_ids, positions), previous)
        hidden: torch.Tensor = self.depth(step)(joined, cos, sin)
        return hidden

    def _embedded(self, input_ids: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        # No earlier hidden state predicts the first token, so training masks its embedding.
        embedded: torch.Tensor = self.embed_tokens(input_ids)
        return embedded.masked_fill((positions == 0).unsqueeze(-1), 0)


class AscendDeepSeekMTP(nn.Module):
    """The draft as vLLM's ``DeepSeekMTPModel``, for every model of the family.

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
        # vLLM gives all drafts of the family one model_type; the target's tells them apart.
        config = speculative.target_model_config.hf_config
        self.architecture = ARCHITECTURES[config.model_type]
        spec = self.architecture.spec.from_config(config)
        check_draft(spec)
        self.config = config
        self._source = speculative.draft_model_config.model
        self.model = DeepSeekMultiTokenPredictor(self.architecture, spec, vllm_config)
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
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """What the head reads, and what the next draft step receives, each ``[T, H]``.

        The first is not normed yet: :meth:`compute_logits` does it for the rows that it is given.
        """
        hidden = self.model(input_ids, positions, hidden_states, spec_step_idx)
        return hidden, self.model.depth(spec_step_idx).head_input(hidden)

    def compute_logits(
        self, hidden_states: torch.Tensor, spec_step_idx: int = 0
    ) -> torch.Tensor | None:
        """Logits ``[T, V]`` of the first result of :meth:`forward`."""
        normed = self.model.depth(spec_step_idx).head_input(hidden_states)
        return self.logits_processor(self.lm_head, normed)

    def load_weights(self, weights: Iterable[tuple[str, torch.Tensor]]) -> set[str]:
        """Fill the draft from the MTP layers of the main model's checkpoint."""
        table = self.model.forms.table
        check_headers(table, self._source)
        loaded = table.load(self, weights)
        finish_weights(self)
        fuse_prologues(self)
        self.has_own_embed_tokens = "model.embed_tokens.weight" in loaded
        self.has_own_lm_head = "lm_head.weight" in loaded
        return loaded
