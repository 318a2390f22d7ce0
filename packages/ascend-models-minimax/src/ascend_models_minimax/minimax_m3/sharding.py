"""Which part of every tensor a rank holds."""

from __future__ import annotations

from dataclasses import dataclass

from ascend_attention.layers.qkv_indexer import QKVIndexerShape
from ascend_ops_core.errors import InvalidInputError

from ascend_models_minimax.minimax_m3.config import MiniMaxM3Spec


@dataclass(frozen=True)
class Shard:
    """What one rank has; ranges are half-open.

    Attributes:
        size: tensor-parallel ranks.
        rank: this one.
        dense: channels of the MLP of dense layers.
        intermediate: channels of each routed expert.
        shared: channels of the shared experts, which are one MLP.
        vocabulary: rows of embedding and head.
    """

    size: int
    rank: int
    dense: tuple[int, int]
    intermediate: tuple[int, int]
    shared: tuple[int, int]
    vocabulary: tuple[int, int]

    @classmethod
    def of(
        cls,
        spec: MiniMaxM3Spec,
        size: int,
        rank: int,
        vocabulary: tuple[int, int],
        *,
        whole_experts: bool = False,
    ) -> Shard:
        """Ranges of ``rank`` among ``size``.

        Args:
            spec: the model's config.
            size: tensor-parallel ranks.
            rank: one of them.
            vocabulary: its rows of embedding and head.
            whole_experts: ranks share routed experts out whole, which no table of tensors has to
                know; else every rank has a slice of each.

        Raises:
            InvalidInputError: ``size`` does not divide the heads or a network's channels.
        """
        qkv_shape(spec, 0, size, rank)
        sliced = _sliced(spec, whole_experts=whole_experts)
        for name, value in sliced.items():
            if value % size:
                raise InvalidInputError(
                    f"tensor_parallel_size={size}",
                    f"it must divide {name}={value}",
                    "Use a number of ranks that divides the heads and the channels.",
                )

        def part(total: int) -> tuple[int, int]:
            return rank * (total // size), (rank + 1) * (total // size)

        inter = spec.intermediate_size
        return cls(
            size,
            rank,
            dense=part(spec.dense_intermediate_size),
            intermediate=(0, inter) if whole_experts else part(inter),
            shared=part(spec.shared_intermediate_size),
            vocabulary=vocabulary,
        )


def qkv_shape(
    spec: MiniMaxM3Spec, layer: int, size: int, rank: int, *, index_apart: bool = False
) -> QKVIndexerShape:
    """Sizes of a layer's projection on one rank, that of the indexer included where there is one.

    Args:
        spec: the model's config.
        layer: number of the layer, MTP layers after the main ones.
        size: tensor-parallel ranks.
        rank: one of them.
        index_apart: the indexer's projections are a product of their own.

    Raises:
        InvalidInputError: heads that the ranks cannot share.
    """
    selects = spec.selection is not None and spec.is_sparse_layer(layer)
    return QKVIndexerShape(
        spec.hidden_size,
        spec.num_attention_heads,
        spec.num_key_value_heads,
        spec.head_dim,
        spec.selection.head_dim if selects and spec.selection is not None else None,
        size,
        rank,
        index_apart,
    )


def _sliced(spec: MiniMaxM3Spec, *, whole_experts: bool) -> dict[str, int]:
    """Sizes that the tensor-parallel ranks divide among them, by name."""
    sliced = {}
    if not all(spec.moe_layers):
        sliced["dense_intermediate_size"] = spec.dense_intermediate_size
    if spec.n_routed_experts:
        if not whole_experts:
            sliced["intermediate_size"] = spec.intermediate_size
        sliced["shared_intermediate_size"] = spec.shared_intermediate_size
    return sliced
