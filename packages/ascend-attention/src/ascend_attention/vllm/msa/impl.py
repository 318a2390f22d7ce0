"""AscendMiniMaxM3SparseImpl: the order of work in one layer's attention."""

from __future__ import annotations

from typing import cast

import torch
from ascend_ops_core.ops.kv_scatter import scatter_kv_pair

from ascend_attention.layers.qkv_indexer import QKVIndexerParts
from ascend_attention.ops.block_sparse_attention import block_sparse_attention
from ascend_attention.vllm.msa.cache_layers import AscendMiniMaxM3KVCache
from ascend_attention.vllm.msa.indexer import AscendMiniMaxM3Indexer
from ascend_attention.vllm.msa.metadata import AscendMiniMaxM3Metadata


class AscendMiniMaxM3SparseImpl:
    """Writes the caches, selects blocks, and attends to them.

    Args:
        cache: keys and values.
        indexer: what selects; None in a layer that attends to all blocks.
        scale: factor on dot products.
    """

    def __init__(
        self, cache: AscendMiniMaxM3KVCache, indexer: AscendMiniMaxM3Indexer | None, scale: float
    ) -> None:
        self.cache = cache
        self.indexer = indexer
        self.scale = scale

    def forward(self, parts: QKVIndexerParts, out: torch.Tensor) -> None:
        """Attention of a step's tokens.

        Args:
            parts: normed and rotated, of the step's tokens, and of padding rows behind them.
            out: ``[T, h, D]``; written, with zeros in padding rows and in a dummy run without
                caches.
        """
        meta = cast("AscendMiniMaxM3Metadata | None", self.cache.metadata())
        if meta is None:
            out.zero_()
            return
        tokens = meta.num_tokens
        step = QKVIndexerParts(*(None if one is None else one[:tokens] for one in parts))  # type: ignore[arg-type]
        # Padding rows beyond the step's tokens must not carry garbage into the collectives.
        out[tokens:].zero_()
        scatter_kv_pair(self.cache.keys, self.cache.values, step.key, step.value, meta.slots)
        if self.indexer is None:
            ids = meta.visible_blocks().expand(-1, step.key.shape[1], -1)
        else:
            assert step.index_query is not None
            assert step.index_key is not None
            ids = self.indexer(step.index_query, step.index_key)
        attended, _ = block_sparse_attention(
            step.query,
            self.cache.keys,
            self.cache.values,
            ids,
            meta.block_table,
            meta.request,
            meta.position,
            self.scale,
        )
        out[:tokens] = attended
