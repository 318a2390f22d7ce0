"""Kimi-Linear and Kimi-K3 as planning and checking see them, under the names of other models."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Self

import torch
from ascend_attention.caches import CacheKind, CacheRole, mla_caches
from ascend_attention.ops.gated_delta_rule import CHUNK
from ascend_attention.state_caches import kda_state
from ascend_models_kimi.kimi_k3.mtp_weights import mtp_table
from ascend_models_kimi.kimi_k3.vision.config import VisionSpec
from ascend_models_kimi.kimi_k3.vision.weights import whole_table
from ascend_models_kimi.kimi_linear.config import KimiLinearSpec
from ascend_models_kimi.kimi_linear.sharding import Shard
from ascend_models_kimi.kimi_linear.weights import main_table
from ascend_ops_core.checkpoint.table import WeightTable

from ascend_vllm_plugin.planning.states import StatePages, StateUse, hybrid_block_tokens

__all__ = ["MODEL_TYPES", "PlannedKimi", "Shard", "description_at_the_top"]

MODEL_TYPES = ("kimi_linear", "kimi_k3")
_FLOAT32 = 4
_DESCRIPTION = "quantization_config"


@dataclass(frozen=True)
class PlannedKimi:
    """A model, with the sizes that planning varies.

    Attributes:
        text: config of the text model.
        vision: config of the vision tower, which every card holds whole; None without images.
        n_routed_experts: experts of a layer.
        moe_intermediate_size: channels of an expert.
    """

    text: KimiLinearSpec
    vision: VisionSpec | None
    n_routed_experts: int
    moe_intermediate_size: int

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> Self:
        """Read ``config.json``.

        Raises:
            InvalidInputError: it describes no model that can be served.
        """
        text = KimiLinearSpec.from_config(config)
        vision = VisionSpec.from_config(config) if config.get("text_config") else None
        return cls(text, vision, text.num_experts, text.moe_intermediate_size)

    @property
    def root(self) -> str:
        """In front of all names of the text model's tensors."""
        return "" if self.vision is None else "language_model."

    @property
    def vocab_size(self) -> int:
        """Rows of embedding and head."""
        return self.text.vocab_size

    @property
    def hidden_size(self) -> int:
        """Width of the residual stream."""
        return self.text.hidden_size

    @property
    def expert_hidden_size(self) -> int:
        """Width that routed experts read and write."""
        return self.text.expert_hidden_size

    @property
    def num_attention_heads(self) -> int:
        """Query heads of latent attention."""
        return self.text.num_attention_heads

    @property
    def num_hidden_layers(self) -> int:
        """Main layers."""
        return self.text.num_hidden_layers

    @property
    def num_mtp_layers(self) -> int:
        """Draft layers."""
        return self.text.num_mtp_layers

    @property
    def max_position_embeddings(self) -> int:
        """Tokens of the longest context."""
        return self.text.max_position_embeddings

    @property
    def num_experts_per_tok(self) -> int:
        """Experts that a token visits."""
        return self.text.num_experts_per_tok

    @property
    def n_shared_experts(self) -> int:
        """Shared experts of a layer."""
        return self.text.n_shared_experts

    def main_table(self, shard: Shard) -> WeightTable:
        """Tensors of the model but for its drafts."""
        table = main_table(self._varied, shard, self.root)
        return table if self.vision is None else whole_table(table, self.vision)

    def mtp_table(self, shard: Shard) -> WeightTable:
        """Tensors of the drafts."""
        return mtp_table(self._varied, shard, self.root)

    def shard(self, size: int, vocabulary: tuple[int, int]) -> Shard:
        """What the first of ``size`` tensor-parallel ranks holds.

        Raises:
            InvalidInputError: ``size`` does not divide the model.
        """
        return Shard.of(self._varied, size, 0, vocabulary)

    def caches(
        self,
        layer: int,
        *,
        dtype: torch.dtype,
        device: str,
        block_tokens: int | None,
        ranks: int,
        states: StateUse,
    ) -> list[CacheKind]:
        """The cache of one layer: latents of every token, or states, which ranks share by heads.

        Raises:
            InvalidInputError: heads that the ranks cannot share.
        """
        delta = self.text.delta
        state = kda_state(
            num_heads=delta.num_heads,
            head_dim=delta.head_dim,
            conv_width=delta.conv_width,
            dtype=dtype,
            ranks=ranks,
            drafts=states.drafts,
        )
        latent = mla_caches(
            kv_lora_rank=self.text.kv_lora_rank,
            rotary_dim=self.text.qk_rope_head_dim,
            dtype=dtype,
            device=device,
        )[CacheRole.LATENT]
        tokens = hybrid_block_tokens(latent.row_bytes, state.slot_bytes, block_tokens)
        if not self.text.is_delta_layer(layer):
            return [replace(latent, block_tokens=tokens)]
        role, size = CacheRole.RECURRENT_STATE, state.slot_bytes
        return [StatePages(role, tokens, 0, tokens, size, torch.uint8, None, use=states)]

    def token_bytes(self, ranks: int, hidden: int, itemsize: int) -> int:
        """Bytes per token at the widest point of attention and of a dense network.

        Args:
            ranks: tensor-parallel ranks.
            hidden: bytes of a token's hidden state.
            itemsize: bytes of a value of the model's dtype.
        """
        text, delta = self.text, self.text.delta
        heads = text.num_attention_heads // ranks
        # Queries before and after they are absorbed, what was attended, and its gate in float32.
        head = 2 * text.qk_head_dim + 2 * text.kv_lora_rank + text.v_head_dim
        down = (text.q_lora_rank or 0) + text.kv_lora_rank + text.qk_rope_head_dim
        latent = (heads * head + 2 * down) * itemsize
        if text.mla_output_gate:
            latent += heads * text.v_head_dim * (itemsize + 2 * _FLOAT32)
        width = delta.width // ranks
        # Projections before and after the convolution, gate and output; decays, their sums and
        # two products of a chunk in float32; its two triangles; and the state at its start.
        chunk = delta.num_heads // ranks * 2 * CHUNK * _FLOAT32
        chunk += width * delta.head_dim * _FLOAT32 // CHUNK
        linear = width * (8 * itemsize + 4 * _FLOAT32) + chunk
        dense = 3 * text.intermediate_size // ranks * itemsize
        return 3 * hidden + max(latent, linear, dense) + self._blocks * hidden

    @property
    def _blocks(self) -> int:
        """Sums of blocks that Kimi-K3's stream keeps beside the current one."""
        size = self.text.attn_res_block_size
        return 0 if size is None else -(-self.num_hidden_layers // size)

    @property
    def _varied(self) -> KimiLinearSpec:
        """The text model with the sizes of this object."""
        return replace(
            self.text,
            num_experts=self.n_routed_experts,
            moe_intermediate_size=self.moe_intermediate_size,
        )


def description_at_the_top(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """A config whose description of quantised weights is where other models have it.

    Kimi-K3's lies in its text model's config, out of which vLLM takes it too.

    Args:
        config: ``config.json`` of any model.
    """
    text = config.get("text_config")
    if config.get("model_type") not in MODEL_TYPES or not isinstance(text, Mapping):
        return config
    given = text.get(_DESCRIPTION)
    return config if given is None or config.get(_DESCRIPTION) else {**config, _DESCRIPTION: given}
