"""Kimi-K3's DSpark draft: dense layers that fill a block of places in one pass.

Follows vLLM 0.27.1's ``vllm/models/kimi_k3/nvidia/dspark_mla.py``, which needs CUDA. The draft
reads streams of the target: what they are combined to is context of every layer, without the norm
that a layer's own rows pass. A Markov head then corrects each place by the token in front of it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, cast

import torch
from ascend_attention.layers.mla import MLAShape
from ascend_attention.vllm.linear.draft_latent import AscendDraftMLACache, AscendDraftMLAImpl
from ascend_attention.vllm.mla import MLAAttention
from ascend_fused_moe.quantized_rules import WeightForms
from ascend_fused_moe.vllm.groups import vllm_groups
from ascend_ops_core.checkpoint.headers import check_headers
from ascend_ops_core.cpu_kernels import follow_torch_threads
from ascend_ops_core.layers.block_drafts import Choice, markov_drafts, places_of
from ascend_ops_core.layers.draft_heads import DSparkMarkovHead
from ascend_ops_core.layers.rotary import ComplexExpRotaryEmbedding
from ascend_ops_core.ops.linear import linear
from ascend_ops_core.ops.norm import rms_norm
from ascend_ops_core.quantized_weights import QuantizationResolver
from ascend_ops_core.vllm.vocabulary import lm_head, vocab_embedding, vocabulary_range
from torch import nn
from vllm.config import VllmConfig
from vllm.distributed import (
    get_tensor_model_parallel_rank,
    get_tensor_model_parallel_world_size,
)
from vllm.model_executor.layers.logits_processor import LogitsProcessor

from ascend_models_kimi.kimi_k3.dspark_config import K3DSparkSpec
from ascend_models_kimi.kimi_k3.dspark_weights import dspark_table
from ascend_models_kimi.kimi_linear.build import Build, NoRotation, cache_family, parameter
from ascend_models_kimi.kimi_linear.config import KimiLinearSpec
from ascend_models_kimi.kimi_linear.decoder_layer import Stream
from ascend_models_kimi.kimi_linear.moe import KimiMLP
from ascend_models_kimi.kimi_linear.quantization import LAYER_RULES
from ascend_models_kimi.kimi_linear.sharding import Shard

__all__ = ["AscendK3DSparkForCausalLM"]


class K3DSparkAttention(MLAAttention):
    """Rotated latent attention, whose rows of the context come from the target's streams."""

    impl_cls = AscendDraftMLAImpl
    cache_cls = AscendDraftMLACache
    impl: AscendDraftMLAImpl

    def insert_context(
        self, states: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, slots: torch.Tensor
    ) -> None:
        """Write latents and keys of context into the layer's cache.

        Args:
            states: ``[T, H]``, what the target's streams were combined to.
            cos: ``[T, R / 2]`` float32.
            sin: the same.
            slots: ``[T]`` int64 in the layer's cache; negative for rows that are not written.
        """
        first = self.weights.shape.q_lora_rank or 0
        kv = linear(states, self.weights.qkv_a[first:])
        self.impl.write_context(kv, cos, sin, slots)


class AscendK3DSparkDecoderLayer(nn.Module):
    """Attention over context and block, and a gated network, on a residual stream.

    Args:
        build: what all layers share.
        spec: the draft's config.
        prefix: name of the layer, with a number behind the target's.
    """

    def __init__(self, build: Build, spec: K3DSparkSpec, prefix: str) -> None:
        super().__init__()
        text = spec.text
        self.norm_eps, self.groups = text.rms_norm_eps, build.groups
        self.input_layernorm = parameter(text.hidden_size)
        self.post_attention_layernorm = parameter(text.hidden_size)
        self.self_attn = K3DSparkAttention(
            MLAShape(
                text.hidden_size,
                build.shard.num_heads,
                text.q_lora_rank,
                text.kv_lora_rank,
                text.qk_nope_head_dim,
                text.qk_rope_head_dim,
                text.v_head_dim,
                spec.softmax_scale,
                text.rms_norm_eps,
            ),
            build.dtype,
            f"{prefix}.self_attn",
            device=build.device,
        )
        self.self_attn.impl.causal = spec.causal
        self.mlp = KimiMLP(build, build.shard.dense)

    def forward(self, stream: Stream, cos: torch.Tensor, sin: torch.Tensor) -> Stream:
        """The stream behind this layer, from the stream in front of it."""
        hidden, residual = stream.normed(self.input_layernorm, self.norm_eps)
        attended = self.groups.tp.all_reduce(self.self_attn(hidden, cos, sin))
        stream = Stream(residual, attended)
        hidden, residual = stream.normed(self.post_attention_layernorm, self.norm_eps)
        return Stream(residual, self.mlp(hidden))


class AscendK3DSparkModel(nn.Module):
    """Layers, and what turns the target's streams into context.

    Args:
        spec: the draft's config.
        vllm_config: the engine's config.
    """

    def __init__(self, spec: K3DSparkSpec, vllm_config: VllmConfig) -> None:
        super().__init__()
        text, dtype = spec.text, vllm_config.model_config.dtype
        self.spec, self.norm_eps = spec, text.rms_norm_eps
        self.embed_tokens = vocab_embedding(text, dtype)
        shard = Shard.of(
            text,
            get_tensor_model_parallel_world_size(),
            get_tensor_model_parallel_rank(),
            vocabulary_range(self.embed_tokens),
        )
        self.forms = WeightForms(
            dspark_table(spec, shard), QuantizationResolver.of({}, LAYER_RULES)
        )
        build = Build(
            text,
            shard,
            NoRotation(0, text.qk_rope_head_dim),
            dtype,
            cache_family(),
            0,
            vllm_groups(expert_parallel=False),
            self.forms,
        )
        # Its positions are the target's, however few the draft was trained on.
        self.rotary = ComplexExpRotaryEmbedding(
            text.qk_rope_head_dim, spec.theta, vllm_config.model_config.max_model_len, spec.yarn
        )
        self.context_proj = parameter(
            text.hidden_size, spec.target_hidden_size * len(spec.target_layers), dtype=dtype
        )
        self.context_norm = parameter(text.hidden_size)
        # Caches are told apart by their number, so these follow the target's.
        first = vllm_config.model_config.get_num_layers(vllm_config.parallel_config)
        self.layers = nn.ModuleList(
            AscendK3DSparkDecoderLayer(build, spec, f"model.layers.{first + i}")
            for i in range(text.num_hidden_layers)
        )
        self.final_norm = parameter(text.hidden_size)

    def attentions(self) -> list[K3DSparkAttention]:
        """Of all layers, in order."""
        return [cast(K3DSparkAttention, layer.self_attn) for layer in self.layers]

    def combine(self, streams: torch.Tensor) -> torch.Tensor:
        """Context ``[T, H]`` of the target's streams ``[T, m * H]``."""
        return rms_norm(linear(streams, self.context_proj), self.context_norm, self.norm_eps)

    def insert_context(
        self, states: torch.Tensor, positions: torch.Tensor, slots: Mapping[str, torch.Tensor]
    ) -> None:
        """Write what :meth:`combine` gave into the caches, before a block reads them.

        Args:
            states: ``[T, H]``.
            positions: ``[T]``.
            slots: of each layer by the name of its cache, ``[T]``.
        """
        cos, sin = self.rotary.gather(positions)
        for attention in self.attentions():
            attention.insert_context(states, cos, sin, slots[attention.cache.prefix])

    def forward(self, tokens: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        """Normed hidden states ``[N, H]`` of whole blocks."""
        follow_torch_threads()
        cos, sin = self.rotary.gather(positions)
        stream = Stream(None, self.embed_tokens(tokens))
        for layer in self.layers:
            stream = layer(stream, cos, sin)
        return stream.normed(self.final_norm, self.norm_eps)[0]


class AscendK3DSparkForCausalLM(nn.Module):
    """The draft as vLLM's ``K3DSparkModel``; embedding and head are the target's.

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
        target = KimiLinearSpec.from_config(speculative.target_model_config.hf_config)
        self.config = speculative.draft_model_config.hf_config
        self._source = speculative.draft_model_config.model
        self.spec = spec = K3DSparkSpec.from_config(self.config, target)
        dtype = vllm_config.model_config.dtype
        self.model = AscendK3DSparkModel(spec, vllm_config)
        self.lm_head = lm_head(spec.text, dtype)
        scale = spec.text.logit_scale
        self.logits_processor = LogitsProcessor(spec.text.vocab_size, scale=scale)
        self.markov_head = DSparkMarkovHead(
            spec.text.vocab_size, spec.text.vocab_size, spec.markov_rank, dtype, scale
        )

    def embed_input_ids(self, input_ids: torch.Tensor) -> torch.Tensor:
        """``[T, H]`` embeddings."""
        return self.model.embed_tokens(input_ids)

    def combine_hidden_states(self, hidden_states: torch.Tensor) -> torch.Tensor:
        """Context ``[T, H]`` of the target's streams ``[T, m * H]``, layer by layer."""
        return self.model.combine(hidden_states)

    def insert_context(
        self, states: torch.Tensor, positions: torch.Tensor, slots: Mapping[str, torch.Tensor]
    ) -> None:
        """See :meth:`AscendK3DSparkModel.insert_context`."""
        self.model.insert_context(states, positions, slots)

    def causal_layers(self) -> dict[str, bool]:
        """Whether each layer's queries do not see those behind them, by the name of its cache."""
        return {one.cache.prefix: self.spec.causal for one in self.model.attentions()}

    def forward(
        self, input_ids: torch.Tensor, positions: torch.Tensor, block: int, **kwargs: Any
    ) -> torch.Tensor:
        """Normed hidden states ``[R * block, H]`` of whole blocks."""
        return self.model(input_ids, positions)

    def compute_logits(self, hidden_states: torch.Tensor) -> torch.Tensor:
        """Logits ``[T, V]`` without the Markov head's correction."""
        logits: torch.Tensor = self.logits_processor(self.lm_head, hidden_states)
        return logits

    def draft(
        self, hidden: torch.Tensor, anchors: torch.Tensor, choice: Choice
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Choose a block's drafts, each of which learns which token stands in front of it.

        Args:
            hidden: ``[R, Q, H]`` of the block's rows.
            anchors: ``[R]`` tokens that the target chose last.
            choice: how to choose.

        Returns:
            Tokens ``[R, K]``, and their laws ``[R, K, V]`` float32 where they are drawn.
        """
        places = places_of(hidden, self.spec.from_anchor)
        base = self.compute_logits(places.flatten(0, 1)).unflatten(0, places.shape[:2])
        return markov_drafts(base, anchors, self.markov_head, choice)

    def load_weights(self, weights: Iterable[tuple[str, torch.Tensor]]) -> set[str]:
        """Fill all parameters from tensors in the published naming."""
        table = self.model.forms.table
        check_headers(table, self._source)
        return table.load(self, weights)
