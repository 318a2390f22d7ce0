"""One product for queries, keys and values of GQA and for what an indexer of blocks needs.

Shapes: T tokens, H hidden size, h query heads and g key-value heads of this rank, D their width,
Di width of an index head.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from ascend_ops_core.errors import InvalidInputError
from ascend_ops_core.quantized_weights.weight import project
from torch import nn

_INDEX = ("index_q", "index_k")


class ProjectionPart(NamedTuple):
    """One of the projections that share a product; ranges are half-open.

    Attributes:
        total: rows in the checkpoint.
        source: rows of them that the rank holds.
        target: rows of the product that they become.
        width: of a head.
    """

    total: int
    source: tuple[int, int]
    target: tuple[int, int]
    width: int


class QKVIndexerParts(NamedTuple):
    """What a step's tokens give.

    Attributes:
        query: ``[T, h, D]``.
        key: ``[T, g, D]``.
        value: ``[T, g, D]``.
        index_query: ``[T, g, Di]``; None in a layer without an indexer.
        index_key: ``[T, 1, Di]``; the same.
    """

    query: torch.Tensor
    key: torch.Tensor
    value: torch.Tensor
    index_query: torch.Tensor | None
    index_key: torch.Tensor | None


@dataclass(frozen=True)
class QKVIndexerShape:
    """Sizes of a layer's attention and what a rank holds of it.

    Ranks hold whole heads. Where there are more ranks than key-value heads, several hold the same
    one, with different query heads of its group. An index head belongs to a key-value head; the
    index key has one head, which every rank holds.

    Attributes:
        hidden_size: ``H``.
        total_heads: query heads of all ranks.
        total_kv_heads: key-value heads of all ranks, and index heads.
        head_dim: ``D``.
        index_head_dim: ``Di``; None for a layer without an indexer.
        size: tensor-parallel ranks.
        rank: this one.
        index_apart: the index projections are a product of their own, since a checkpoint stores
            them otherwise than the others.

    Raises:
        InvalidInputError: heads that the ranks cannot share, or index projections that are apart
            in a layer without them.
    """

    hidden_size: int
    total_heads: int
    total_kv_heads: int
    head_dim: int
    index_head_dim: int | None = None
    size: int = 1
    rank: int = 0
    index_apart: bool = False

    def __post_init__(self) -> None:
        size, kv_heads = self.size, self.total_kv_heads
        if not 0 <= self.rank < size:
            raise InvalidInputError(
                f"rank {self.rank}", f"there are {size} ranks", "Pass a rank of the group."
            )
        if self.total_heads % kv_heads:
            raise InvalidInputError(
                f"{self.total_heads} query heads for {kv_heads} key-value heads",
                "each of the latter serves as many of the former",
                "Check the numbers of heads in config.json.",
            )
        if self.index_apart and self.index_head_dim is None:
            raise InvalidInputError(
                "index_apart=True",
                "a layer without an indexer has no index projections",
                "Leave it out.",
            )
        if self.total_heads % size or (kv_heads % size and size % kv_heads):
            usable = [
                n
                for n in range(1, self.total_heads + 1)
                if not self.total_heads % n and (not kv_heads % n or not n % kv_heads)
            ]
            raise InvalidInputError(
                f"tensor_parallel_size={size}",
                f"it must divide num_attention_heads={self.total_heads}, and divide "
                f"num_key_value_heads={kv_heads} or be a multiple of it",
                f"Use one of {usable}.",
            )

    @property
    def num_heads(self) -> int:
        """``h``."""
        return self.total_heads // self.size

    @property
    def num_kv_heads(self) -> int:
        """``g``."""
        return max(1, self.total_kv_heads // self.size)

    @property
    def parts(self) -> dict[str, ProjectionPart]:
        """The projections by name (``q``, ``k``, ``v``, ``index_q``, ``index_k``), in order.

        Targets are rows of the product that they belong to: of their own one for the last two if
        they are apart.
        """
        kv_rank = self.rank * self.num_kv_heads
        if self.size > self.total_kv_heads:
            kv_rank = self.rank // (self.size // self.total_kv_heads)
        own = self.rank * self.num_heads, self.num_heads, self.total_heads
        kv = kv_rank, self.num_kv_heads, self.total_kv_heads
        heads = {"q": (*own, self.head_dim), "k": (*kv, self.head_dim), "v": (*kv, self.head_dim)}
        if self.index_head_dim is not None:
            heads["index_q"] = (*kv, self.index_head_dim)
            heads["index_k"] = (0, 1, 1, self.index_head_dim)
        parts, row = {}, 0
        for name, (first, count, total, width) in heads.items():
            if self.index_apart and name == _INDEX[0]:
                row = 0
            rows = count * width
            source = first * width, first * width + rows
            parts[name] = ProjectionPart(total * width, source, (row, row + rows), width)
            row += rows
        return parts

    @property
    def qkv_parts(self) -> dict[str, ProjectionPart]:
        """The projections that are one product with queries, keys and values."""
        return {n: one for n, one in self.parts.items() if not self.index_apart or n not in _INDEX}

    @property
    def index_parts(self) -> dict[str, ProjectionPart]:
        """The projections that are a product of their own."""
        return {n: one for n, one in self.parts.items() if self.index_apart and n in _INDEX}


class _StackedLinear(nn.Module):
    """Projections whose weights lie one after the other.

    Args:
        parts: the projections by name.
        hidden_size: ``H``.
        dtype: of the weight.

    Attributes:
        weight: ``[rows, H]``; a model may put a quantised weight in its place.
    """

    def __init__(
        self, parts: dict[str, ProjectionPart], hidden_size: int, dtype: torch.dtype
    ) -> None:
        super().__init__()
        self.parts = parts
        self.hidden_size = hidden_size
        rows = max(part.target[1] for part in parts.values())
        self.weight = nn.Parameter(torch.empty(rows, hidden_size, dtype=dtype), requires_grad=False)

    def weight_loader(self, loaded: torch.Tensor, shard_id: str) -> None:
        """Copy this rank's rows of one projection.

        Args:
            loaded: ``[rows, H]`` of all ranks.
            shard_id: name of the projection.

        Raises:
            InvalidInputError: no such projection in this layer, a tensor of another shape, or a
                quantised weight, which a table of tensors fills; nothing was changed.
        """
        if shard_id not in self.parts:
            raise InvalidInputError(
                f"shard id {shard_id!r}",
                f"this layer has {', '.join(self.parts)}",
                "Check the names of the checkpoint's tensors.",
            )
        part = self.parts[shard_id]
        if loaded.shape != (part.total, self.hidden_size):
            raise InvalidInputError(
                f"{shard_id} of shape {list(loaded.shape)}",
                f"all ranks together have {[part.total, self.hidden_size]}",
                "Pass the whole tensor of the checkpoint.",
            )
        if not isinstance(self.weight, nn.Parameter):
            raise InvalidInputError(
                f"{shard_id} for a quantised weight",
                "its tensors have places of their own",
                "Load it by a table of tensors (ascend_fused_moe.quantized_rules).",
            )
        self.weight.data[slice(*part.target)].copy_(loaded[slice(*part.source)])

    def heads(self, hidden: torch.Tensor) -> list[torch.Tensor]:
        """``[T, n, width]`` of each projection of ``hidden [T, H]``, in order."""
        product = project(hidden, self.weight)
        return [
            product[:, slice(*part.target)].unflatten(-1, (-1, part.width))
            for part in self.parts.values()
        ]


class QKVParallelLinearWithIndexer(_StackedLinear):
    """The projections of :class:`QKVIndexerShape` as one weight, but for those that are apart.

    Args:
        shape: sizes.
        dtype: of the weight.
    """

    def __init__(self, shape: QKVIndexerShape, dtype: torch.dtype) -> None:
        super().__init__(shape.qkv_parts, shape.hidden_size, dtype)

    def forward(self, hidden: torch.Tensor) -> QKVIndexerParts:
        """The projections of ``hidden [T, H]``; ``T`` may be 0."""
        heads = self.heads(hidden)
        return QKVIndexerParts(*heads, *[None] * (len(QKVIndexerParts._fields) - len(heads)))


class AscendMiniMaxM3IndexerLinear(_StackedLinear):
    """The index projections, where a checkpoint stores them otherwise than the others.

    Source: vllm-ascend's class of this name, for mixed quantisation.

    Args:
        shape: sizes, with ``index_apart``.
        dtype: of the weight.
    """

    def __init__(self, shape: QKVIndexerShape, dtype: torch.dtype) -> None:
        super().__init__(shape.index_parts, shape.hidden_size, dtype)

    def forward(self, hidden: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Index queries ``[T, g, Di]`` and keys ``[T, 1, Di]`` of ``hidden [T, H]``."""
        query, key = self.heads(hidden)
        return query, key
