"""The caches of a layer of block-sparse attention as vLLM sees them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from ascend_ops_core.huge_pages import move_to_huge_pages
from vllm.v1.attention.backend import AttentionBackend

from ascend_attention.vllm.dsa.cache_layers import PagedCacheLayer
from ascend_attention.vllm.msa.backend import (
    AscendMiniMaxM3IndexerBackend,
    AscendMiniMaxM3SparseBackend,
)

if TYPE_CHECKING:
    from ascend_attention.vllm.msa.impl import AscendMiniMaxM3SparseImpl


class AscendMiniMaxM3KVCache(PagedCacheLayer):
    """Keys and values of every token.

    Attributes:
        keys: ``[B, P, g, D]`` of what the engine bound.
        values: the same.
        impl: what attends to them, which the layer's operator finds here by the cache's name.
    """

    keys: torch.Tensor
    values: torch.Tensor
    impl: AscendMiniMaxM3SparseImpl

    def bind_kv_cache(self, kv_cache: torch.Tensor) -> None:
        """Take the cache that the engine allocated, ``[2, B, P, g, D]``."""
        self.kv_cache = self.rows = kv_cache
        self.keys, self.values = kv_cache.unbind(0)

    def get_attn_backend(self) -> type[AttentionBackend]:
        return AscendMiniMaxM3SparseBackend


class AscendMiniMaxM3IndexerCache(PagedCacheLayer):
    """The index key of every token, ``[B, P, Di]``."""

    def bind_kv_cache(self, kv_cache: torch.Tensor) -> None:
        """Take the cache; a decode step on a CPU streams all index keys of a context."""
        super().bind_kv_cache(kv_cache)
        move_to_huge_pages([kv_cache])

    def get_attn_backend(self) -> type[AttentionBackend]:
        return AscendMiniMaxM3IndexerBackend
