"""An Eagle3 draft whose one layer has a wider residual stream (VWN)."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from ascend_ops_core.errors import InvalidInputError
from torch import nn
from transformers import LlamaConfig
from vllm.config import VllmConfig
from vllm.model_executor.layers.layernorm import RMSNorm
from vllm.model_executor.layers.linear import ReplicatedLinear
from vllm.model_executor.layers.logits_processor import LogitsProcessor
from vllm.model_executor.layers.vocab_parallel_embedding import (
    ParallelLMHead,
    VocabParallelEmbedding,
)
from vllm.model_executor.models.llama import LlamaAttention, LlamaMLP
from vllm.model_executor.models.llama_eagle3 import LlamaModel
from vllm.model_executor.models.utils import (
    AutoWeightsLoader,
    get_draft_quant_config,
    maybe_prefix,
)

from ascend_specdec.layers.wider_residual import WiderResidualLayer
from ascend_specdec.llama_eagle3.model import AscendEagle3LlamaForCausalLM
from ascend_specdec.vllm.draft_windows import own_window

STREAMS = 3
"""Streams of the target that the draft reads."""

_UNUSED = ("layers.0.input_layernorm.", "layers.0.hidden_norm.")
"""Norms of a plain Eagle3 layer, which checkpoints may hold beside those of the entry layer."""


class Eagle3VwnLlamaForCausalLM(AscendEagle3LlamaForCausalLM):
    """The draft; its config says ``vwn_m`` (chunks) and ``vwn_r`` (how much wider).

    Args:
        vllm_config: the engine's config.
        prefix: of the module's name.

    Raises:
        InvalidInputError: more than one layer, or widths that do not fit.
    """

    def __init__(self, *, vllm_config: VllmConfig, prefix: str = "") -> None:
        nn.Module.__init__(self)
        config = vllm_config.speculative_config.draft_model_config.hf_config
        if config.num_hidden_layers != 1:
            raise InvalidInputError(
                f"num_hidden_layers={config.num_hidden_layers}",
                "a draft with a wider residual has one layer",
                "Set it to 1 in the draft's config.json.",
            )
        self.config = config
        if getattr(config, "draft_vocab_size", None) is None:
            config.draft_vocab_size = config.vocab_size
        depth = vllm_config.model_config.get_total_num_hidden_layers()
        config.target_layer_count = depth
        with own_window(vllm_config, getattr(config, "sliding_window", None)):
            self.model = VwnModel(vllm_config, config, depth, maybe_prefix(prefix, "model"))
        self.lm_head = ParallelLMHead(
            config.draft_vocab_size,
            config.hidden_size,
            quant_config=get_draft_quant_config(vllm_config),
            prefix=maybe_prefix(prefix, "lm_head"),
        )
        scale = getattr(config, "logit_scale", 1.0)
        self.logits_processor = LogitsProcessor(config.draft_vocab_size, scale=scale)
        self.draft_id_to_target_id = nn.Parameter(
            torch.zeros(config.draft_vocab_size, dtype=torch.long), requires_grad=False
        )
        self.use_parallel_drafting = vllm_config.speculative_config.parallel_drafting
        if self.use_parallel_drafting:
            mask = torch.zeros(1, self.model.fc_input_size)
            self.register_buffer("mask_hidden", mask, persistent=False)
        self.set_target(vllm_config)


class VwnModel(nn.Module):
    """Embedding, the layer, and the norm behind it.

    Args:
        vllm_config: the engine's config.
        config: the draft's.
        depth: layers of the target; the draft's cache is that of the layer behind them.
        prefix: of the module's name.
    """

    # What the class around it, which is vLLM's, asks of a draft's model.
    use_aux_hidden_state = True
    norm_before_fc = False
    fc_norm = None
    num_aux_hidden_states = STREAMS

    def __init__(
        self, vllm_config: VllmConfig, config: LlamaConfig, depth: int, prefix: str
    ) -> None:
        super().__init__()
        quant_config = get_draft_quant_config(vllm_config)
        width = config.hidden_size
        self.embed_tokens = VocabParallelEmbedding(
            config.vocab_size, width, prefix=maybe_prefix(prefix, "embed_tokens")
        )
        self.fc_input_size = STREAMS * getattr(config, "target_hidden_size", width)
        self.fc = ReplicatedLinear(
            input_size=self.fc_input_size,
            output_size=width,
            bias=False,
            params_dtype=vllm_config.model_config.dtype,
            quant_config=quant_config,
            prefix=maybe_prefix(prefix, "fc"),
            return_bias=False,
        )
        place = maybe_prefix(prefix, f"layers.{depth}")
        attention = LlamaAttention(
            config=config,
            hidden_size=width,
            num_heads=config.num_attention_heads,
            num_kv_heads=config.num_key_value_heads,
            max_position_embeddings=config.max_position_embeddings,
            quant_config=quant_config,
            bias=getattr(config, "attention_bias", False),
            cache_config=vllm_config.cache_config,
            prefix=f"{place}.self_attn",
        )
        mlp = LlamaMLP(
            hidden_size=width,
            intermediate_size=config.intermediate_size,
            hidden_act=config.hidden_act,
            quant_config=quant_config,
            prefix=f"{place}.mlp",
        )
        wider = int(width * getattr(config, "vwn_r", 1))
        chunks = getattr(config, "vwn_m", 1)
        eps = config.rms_norm_eps
        layer = WiderResidualLayer(width, wider, chunks, eps, attention, mlp)
        self.layers = nn.ModuleList([layer])
        self.norm = RMSNorm(width, eps=eps)

    def embed_input_ids(self, input_ids: torch.Tensor) -> torch.Tensor:
        """Embed ``input_ids [T]``."""
        out: torch.Tensor = self.embed_tokens(input_ids)
        return out

    def forward(
        self,
        input_ids: torch.Tensor,
        positions: torch.Tensor,
        hidden_states: torch.Tensor,
        inputs_embeds: torch.Tensor | None = None,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """What the head reads, and what the next step reads, both ``[T, H]``."""
        if inputs_embeds is None:
            inputs_embeds = self.embed_input_ids(input_ids)
        out = self.layers[0](positions, inputs_embeds, hidden_states)
        return self.norm(out), out

    def load_weights(self, weights: Iterable[tuple[str, torch.Tensor]]) -> set[str]:
        """Load what is not unused, see ``_UNUSED``; returns the names of parameters."""
        loader = AutoWeightsLoader(self, skip_prefixes=list(_UNUSED))
        names: set[str] = loader.load_weights(weights, mapper=LlamaModel.hf_to_vllm_mapper)
        return names
