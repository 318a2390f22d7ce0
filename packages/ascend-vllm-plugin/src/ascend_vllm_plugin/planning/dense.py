"""Llama and Qwen3 as planning and checking see them, under the names that other models' specs have.

vLLM serves these with its own models, on this project's attention and operators.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

import torch
from ascend_attention.caches import CacheKind, CacheRole
from ascend_attention.msa_caches import KeyValueKind
from ascend_ops_core.checkpoint.table import TensorRule, WeightTable
from ascend_ops_core.errors import InvalidInputError

__all__ = ["MODEL_TYPES", "PlannedDense", "Shard", "check_block", "key_value_cache"]

MODEL_TYPES = ("llama", "qwen3")
BLOCK_TOKENS = 128
"""Tokens of a block unless asked otherwise: vLLM's default on a CPU, and the NPU's."""

_NEEDED = (
    "hidden_size",
    "intermediate_size",
    "num_hidden_layers",
    "num_attention_heads",
    "vocab_size",
)


@dataclass(frozen=True)
class Shard:
    """What one of ``ranks`` tensor-parallel ranks holds.

    Attributes:
        ranks: number of ranks; this is the first.
        vocabulary: its rows of embedding and head.
    """

    ranks: int
    vocabulary: tuple[int, int]


@dataclass(frozen=True)
class PlannedDense:
    """A model without experts.

    Attributes:
        model_type: of its config.
        vocab_size: rows of embedding and head.
        hidden_size: width of the residual stream.
        intermediate_size: channels of a layer's network.
        num_hidden_layers: layers.
        num_attention_heads: query heads.
        num_key_value_heads: key-value heads.
        head_dim: width of a head.
        max_position_embeddings: tokens of the longest context.
        tied: embedding and head are one matrix.
        attention_bias: projections of attention have biases.
        mlp_bias: the network's do.
        n_routed_experts: none; planning varies experts of all models.
        moe_intermediate_size: the same.
    """

    model_type: str
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    max_position_embeddings: int
    tied: bool = False
    attention_bias: bool = False
    mlp_bias: bool = False
    n_routed_experts: int = 0
    moe_intermediate_size: int = 0

    num_mtp_layers = 0
    num_experts_per_tok = 0
    n_shared_experts = 0

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> Self:
        """Read ``config.json``.

        Raises:
            InvalidInputError: a field is missing, layers that slide, or quantised weights.
        """
        for name in _NEEDED:
            if not isinstance(config.get(name), int) or config[name] < 1:
                raise InvalidInputError(
                    f"{name}={config.get(name)!r}",
                    f"a {config.get('model_type')} has a number of at least 1 there",
                    "Correct config.json.",
                )
        if config.get("use_sliding_window") or "sliding_attention" in (
            config.get("layer_types") or ()
        ):
            raise InvalidInputError(
                "a model whose layers slide",
                "of dense models those that attend to everything are planned",
                "Set use_sliding_window to false, or serve it without a plan.",
            )
        if config.get("quantization_config"):
            raise InvalidInputError(
                f"a quantised {config['model_type']}",
                "of dense models those in the model's dtype are planned",
                "Plan with the config.json of the unquantised checkpoint.",
            )
        heads = config["num_attention_heads"]
        return cls(
            model_type=config["model_type"],
            **{name: config[name] for name in _NEEDED},
            num_key_value_heads=config.get("num_key_value_heads") or heads,
            head_dim=config.get("head_dim") or config["hidden_size"] // heads,
            max_position_embeddings=config.get("max_position_embeddings") or 8192,
            tied=bool(config.get("tie_word_embeddings")),
            attention_bias=bool(config.get("attention_bias")),
            mlp_bias=bool(config.get("mlp_bias")),
        )

    def shard(self, size: int, vocabulary: tuple[int, int]) -> Shard:
        """What the first of ``size`` tensor-parallel ranks holds.

        Raises:
            InvalidInputError: ``size`` does not divide the model.
        """
        heads, keys = self.num_attention_heads, self.num_key_value_heads
        shared = keys % size == 0 or size % keys == 0
        if heads % size or self.intermediate_size % size or not shared:
            raise InvalidInputError(
                f"tp={size}",
                f"it must divide {heads} heads and {self.intermediate_size} channels, and divide "
                f"or be a multiple of {keys} key-value heads",
                "Choose another number of cards.",
            )
        return Shard(size, vocabulary)

    def main_table(self, shard: Shard) -> WeightTable:
        """All tensors of the model."""
        hidden, rows = self.hidden_size, slice(*shard.vocabulary)
        rules = {
            "model.embed_tokens.weight": TensorRule(
                (self.vocab_size, hidden), "model.embed_tokens.weight", source=(rows,)
            ),
            "model.norm.weight": TensorRule((hidden,), "model.norm.weight"),
            "lm_head.weight": TensorRule(
                (self.vocab_size, hidden), "lm_head.weight", source=(rows,), optional=self.tied
            ),
        }
        for layer in range(self.num_hidden_layers):
            for name, shape, part in self._layer(shard.ranks):
                full = f"model.layers.{layer}.{name}"
                rules[full] = TensorRule(shape, full, source=part)
        return WeightTable(rules, ())

    def caches(
        self, layer: int, *, dtype: torch.dtype, block_tokens: int | None, ranks: int
    ) -> list[CacheKind]:
        """The cache of one layer on one of ``ranks`` ranks; all layers are alike."""
        heads = max(1, self.num_key_value_heads // ranks)
        return [key_value_cache(heads, self.head_dim, dtype, block_tokens)]

    def token_bytes(self, ranks: int, hidden: int, itemsize: int) -> int:
        """Bytes per token at the widest point of attention and of the network.

        Args:
            ranks: tensor-parallel ranks.
            hidden: bytes of a token's hidden state.
            itemsize: bytes of a value of the model's dtype.
        """
        heads = self.num_attention_heads // ranks
        keys = max(1, self.num_key_value_heads // ranks)
        # Projections before and after norm and rotation, and what was attended.
        attention = (2 * (heads + 2 * keys) + heads) * self.head_dim * itemsize
        network = 3 * self.intermediate_size // ranks * itemsize
        return 3 * hidden + max(attention, network)

    def rotary_bytes(self, dtype: torch.dtype) -> int:
        """Bytes of vLLM's table of cos and sin, which has the model's dtype and all positions."""
        return self.max_position_embeddings * self.head_dim * dtype.itemsize

    def _layer(self, ranks: int) -> list[tuple[str, tuple[int, ...], tuple[slice, ...]]]:
        """Name, shape and this rank's part of every tensor of a layer."""
        hidden, width = self.hidden_size, self.head_dim
        query, key = self.num_attention_heads * width, self.num_key_value_heads * width
        inner = self.intermediate_size
        found: list[tuple[str, tuple[int, ...], tuple[slice, ...]]] = [
            ("input_layernorm.weight", (hidden,), ()),
            ("post_attention_layernorm.weight", (hidden,), ()),
        ]
        if self.model_type == "qwen3":
            found += [(f"self_attn.{one}_norm.weight", (width,), ()) for one in ("q", "k")]
        # Ranks beyond the key-value heads hold one head each.
        own_query, own_key = slice(query // ranks), slice(max(width, key // ranks))
        for name, rows, part in (
            ("q", query, own_query),
            ("k", key, own_key),
            ("v", key, own_key),
        ):
            found.append((f"self_attn.{name}_proj.weight", (rows, hidden), (part,)))
            if self.attention_bias:
                found.append((f"self_attn.{name}_proj.bias", (rows,), (part,)))
        whole = slice(None)
        found.append(("self_attn.o_proj.weight", (hidden, query), (whole, own_query)))
        for name in ("gate", "up"):
            found.append((f"mlp.{name}_proj.weight", (inner, hidden), (slice(inner // ranks),)))
            if self.mlp_bias:
                found.append((f"mlp.{name}_proj.bias", (inner,), (slice(inner // ranks),)))
        found.append(("mlp.down_proj.weight", (hidden, inner), (whole, slice(inner // ranks))))
        # Qwen3's output projection has no bias in vLLM, Llama's has one with the others.
        if self.attention_bias and self.model_type == "llama":
            found.append(("self_attn.o_proj.bias", (hidden,), ()))
        if self.mlp_bias:
            found.append(("mlp.down_proj.bias", (hidden,), ()))
        return found


def key_value_cache(
    num_kv_heads: int, head_dim: int, dtype: torch.dtype, block_tokens: int | None
) -> KeyValueKind:
    """A cache of keys and values that keeps every token.

    Args:
        num_kv_heads: heads on this rank.
        head_dim: width of each.
        dtype: the model's dtype.
        block_tokens: tokens per block, or None for the default.
    """
    return KeyValueKind(
        CacheRole.KEY_VALUE,
        1,
        0,
        block_tokens or BLOCK_TOKENS,
        2 * num_kv_heads * head_dim,
        dtype,
        None,
        num_kv_heads=num_kv_heads,
        head_dim=head_dim,
    )


def check_block(block_tokens: int | None, device: str) -> None:
    """Refuse blocks that the NPU's attention does not take.

    Raises:
        InvalidInputError: such a block.
    """
    if device != "cpu" and (block_tokens or 0) % BLOCK_TOKENS:
        raise InvalidInputError(
            f"block_size={block_tokens}",
            f"on {device} attention reads blocks of a multiple of {BLOCK_TOKENS} tokens",
            "Leave --block-size unset, or use such a multiple.",
        )
