"""MiniMax-M3 as planning and checking see it, under the names that other models' specs have."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Self

import torch
from ascend_attention.caches import CacheKind
from ascend_attention.msa_caches import msa_caches
from ascend_models_minimax.minimax_m3.config import MiniMaxM3Spec
from ascend_models_minimax.minimax_m3.quantization import layers_apart
from ascend_models_minimax.minimax_m3.sharding import Shard, qkv_shape
from ascend_models_minimax.minimax_m3.vision.config import VisionSpec
from ascend_models_minimax.minimax_m3.vision.weights import whole_table
from ascend_models_minimax.minimax_m3.weights import main_table, mtp_table
from ascend_ops_core.checkpoint.table import WeightTable
from ascend_ops_core.quantized_weights import QuantizationResolver

__all__ = ["MODEL_TYPES", "PlannedMiniMaxM3", "Shard"]

MODEL_TYPES = ("minimax_m3_vl", "minimax_m3_text", "minimax_m3_vl_text")
_DENSE_BLOCK_TOKENS = 128
_FLOAT32 = 4


@dataclass(frozen=True)
class PlannedMiniMaxM3:
    """A model, with the sizes that planning varies.

    Attributes:
        text: config of the text model.
        vision: config of the vision tower, which every card holds whole; None without images.
        n_routed_experts: experts of a layer.
        moe_intermediate_size: channels of an expert.
        apart: layers whose index projections are a product of their own.
    """

    text: MiniMaxM3Spec
    vision: VisionSpec | None
    n_routed_experts: int
    moe_intermediate_size: int
    apart: frozenset[int] = frozenset()

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> Self:
        """Read ``config.json``.

        Raises:
            InvalidInputError: it describes no model that can be served.
        """
        text = MiniMaxM3Spec.from_config(config)
        vision = VisionSpec.from_config(config) if config.get("text_config") else None
        return cls(text, vision, text.n_routed_experts, text.intermediate_size)

    def described(self, resolver: QuantizationResolver) -> Self:
        """The model with the products that a checkpoint's description leads to."""
        return replace(self, apart=layers_apart(self.text, resolver, self.root))

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
    def num_attention_heads(self) -> int:
        """Query heads."""
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
        """Positions of the rotary table."""
        return self.text.max_position_embeddings

    @property
    def num_experts_per_tok(self) -> int:
        """Experts that a token visits."""
        return self.text.num_experts_per_tok

    @property
    def n_shared_experts(self) -> int:
        """Shared experts of a layer."""
        return self.text.shared_intermediate_size // self.text.intermediate_size

    @property
    def block_tokens(self) -> int:
        """Tokens of a block of the caches, which the indexer selects."""
        chosen = self.text.selection
        return _DENSE_BLOCK_TOKENS if chosen is None else chosen.block_size

    def main_table(self, shard: Shard) -> WeightTable:
        """Tensors of the model but for its drafts."""
        table = main_table(self._varied, shard, self.root, apart=self.apart)
        return table if self.vision is None else whole_table(table, self.vision)

    def mtp_table(self, shard: Shard) -> WeightTable:
        """Tensors of the drafts."""
        return mtp_table(self._varied, shard, self.root, apart=self.apart)

    def shard(self, size: int, vocabulary: tuple[int, int]) -> Shard:
        """What the first of ``size`` tensor-parallel ranks holds.

        Raises:
            InvalidInputError: ``size`` does not divide the model.
        """
        return Shard.of(self._varied, size, 0, vocabulary)

    def caches(
        self, layer: int, *, dtype: torch.dtype, device: str, block_tokens: int | None, ranks: int
    ) -> list[CacheKind]:
        """The caches of one layer on one of ``ranks`` tensor-parallel ranks.

        Raises:
            InvalidInputError: heads that the ranks cannot share, or a block that the device's
                kernels do not take.
        """
        shape = qkv_shape(self.text, layer, ranks, 0)
        kinds = msa_caches(
            num_kv_heads=shape.num_kv_heads,
            head_dim=shape.head_dim,
            index_head_dim=shape.index_head_dim,
            dtype=dtype,
            block_tokens=block_tokens or self.block_tokens,
            device=device,
        )
        return list(kinds.values())

    def attention_bytes(self, tokens: int, length: int, ranks: int) -> int:
        """Bytes that one layer's attention works on besides its input and output.

        Scores of every block for every query and index head of a card, what is selected of them,
        and rows of all blocks for layers that attend to everything.

        Args:
            tokens: of the step.
            length: of the longest context.
            ranks: tensor-parallel ranks.
        """
        blocks = -(-length // self.block_tokens)
        heads = qkv_shape(self.text, 0, ranks, 0).num_kv_heads
        chosen = self.text.selection
        if chosen is None:
            return tokens * blocks * _FLOAT32
        scores = heads * (blocks * _FLOAT32 + chosen.topk_blocks * 2 * _FLOAT32)
        return tokens * (scores + blocks * _FLOAT32)

    def token_bytes(self, ranks: int, hidden: int, itemsize: int) -> int:
        """Bytes per token at the widest point of attention and of a dense network.

        Args:
            ranks: tensor-parallel ranks.
            hidden: bytes of a token's hidden state.
            itemsize: bytes of a value of the model's dtype.
        """
        layer = next((i for i in range(self.num_hidden_layers) if self.text.is_sparse_layer(i)), 0)
        shape = qkv_shape(self.text, layer, ranks, 0)
        rows = sum(part.target[1] - part.target[0] for part in shape.parts.values())
        # Projections before and after norm and rotation, and what was attended.
        attention = (2 * rows + shape.num_heads * shape.head_dim) * itemsize
        dense = 3 * self.text.dense_intermediate_size // ranks * itemsize
        return 3 * hidden + max(attention, dense) + 2 * self.text.rotary_dim * _FLOAT32

    @property
    def _varied(self) -> MiniMaxM3Spec:
        """The text model with the sizes of this object."""
        return replace(
            self.text,
            num_local_experts=self.n_routed_experts,
            intermediate_size=self.moe_intermediate_size,
            shared_intermediate_size=self.moe_intermediate_size * self.n_shared_experts,
        )
