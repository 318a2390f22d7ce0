"""The indexer of a layer with its cache: which blocks every query attends to."""

from __future__ import annotations

from typing import cast

import torch
from ascend_ops_core.communication import Group
from ascend_ops_core.ops.kv_scatter import scatter_kv

from ascend_attention.layers.block_parallel_decode import minimax_m3_index_tp_block_parallel_decode
from ascend_attention.ops.block_selection import select_blocks
from ascend_attention.vllm.msa.cache_layers import AscendMiniMaxM3IndexerCache
from ascend_attention.vllm.msa.metadata import AscendMiniMaxM3Metadata
from ascend_attention.vllm.msa.shapes import BlockSelectionShape


class AscendMiniMaxM3IndexerImpl:
    """Writes a step's index keys, then selects for its queries.

    Args:
        shape: how blocks are selected.
        cache: index keys, which every rank holds whole.
        group: tensor-parallel ranks, which share the scores of decode steps; None to compute all
            of this rank's heads here.
    """

    def __init__(
        self,
        shape: BlockSelectionShape,
        cache: AscendMiniMaxM3IndexerCache,
        group: Group | None,
    ) -> None:
        self.shape = shape
        self.cache = cache
        self.group = group

    def forward(self, query: torch.Tensor, key: torch.Tensor) -> torch.Tensor:
        """``[T, g, K]`` int32; see :func:`ascend_attention.ops.block_selection.select_blocks`.

        ``K`` is ``topk_blocks``, or less where no context of the step has as many.

        Args:
            query: ``[T, g, Di]`` normed and rotated, of the step's tokens alone.
            key: ``[T, 1, Di]``, the same.
        """
        meta = cast("AscendMiniMaxM3Metadata | None", self.cache.metadata())
        assert meta is not None, self.cache.prefix
        scatter_kv(self.cache.rows.unsqueeze(2), key, meta.slots)
        blocks = -(-meta.most_tokens // meta.block_tokens)
        top_k = max(1, min(self.shape.topk_blocks, blocks))
        if self.group is not None and meta.decodes:
            return self._decode_topk_tp_sharded(query, meta, top_k, self.group)
        return select_blocks(
            query,
            self.cache.rows,
            meta.block_table,
            meta.request,
            meta.position,
            top_k,
            init_blocks=self.shape.init_blocks,
            local_blocks=self.shape.local_blocks,
            most_tokens=meta.most_tokens,
        )

    def _decode_topk_tp_sharded(
        self, query: torch.Tensor, meta: AscendMiniMaxM3Metadata, top_k: int, group: Group
    ) -> torch.Tensor:
        """The same selection, of which every rank scores a part of the blocks for all heads."""
        return minimax_m3_index_tp_block_parallel_decode(
            query,
            self.cache.rows,
            meta.shared_scores(group.rank_in_group, group.world_size),
            top_k,
            group,
            total_heads=self.shape.total_heads,
            init_blocks=self.shape.init_blocks,
            local_blocks=self.shape.local_blocks,
        )


class AscendMiniMaxM3Indexer(torch.nn.Module):
    """An indexer: its cache, and what selects.

    Args:
        shape: how blocks are selected.
        cache: index keys.
        group: see :class:`AscendMiniMaxM3IndexerImpl`.
    """

    def __init__(
        self,
        shape: BlockSelectionShape,
        cache: AscendMiniMaxM3IndexerCache,
        group: Group | None = None,
    ) -> None:
        super().__init__()
        self.index_cache = cache
        self.impl = AscendMiniMaxM3IndexerImpl(shape, cache, group)

    def forward(self, query: torch.Tensor, key: torch.Tensor) -> torch.Tensor:
        """See :meth:`AscendMiniMaxM3IndexerImpl.forward`."""
        return self.impl.forward(query, key)
