"""The caches of a layer of sparse latent attention as vLLM sees them."""

from __future__ import annotations

import torch
from vllm.v1.attention.backend import AttentionBackend

from ascend_attention.caches import CacheKind, index_views
from ascend_attention.layers.context_parallel import ContextParallel
from ascend_attention.vllm.dsa.cache_layers import PagedCacheLayer
from ascend_attention.vllm.mla.cache_layers import AscendMLACache
from ascend_attention.vllm.sfa.backend import AscendSFABackend


class AscendSFALatentCache(AscendMLACache):
    """Latents and rotated keys of every token, apart or in records of bytes."""

    @property
    def quantised(self) -> bool:
        """Whether ``rows`` are records with latents in eight bits."""
        return self.kind.dtype == torch.int8

    @property
    def apart(self) -> bool:
        """Whether latents lie in front of all rotated keys."""
        return not self.quantised

    @property
    def parts(self) -> list[torch.Tensor]:
        """What attention reads: the records, or latents and rotated keys."""
        return [self.rows] if self.quantised else [self.latents, self.ropes]

    def bind_kv_cache(self, kv_cache: torch.Tensor) -> None:
        """Take the cache that the engine allocated."""
        if self.quantised:
            self.kv_cache = self.rows = kv_cache
        else:
            super().bind_kv_cache(kv_cache)

    def get_attn_backend(self) -> type[AttentionBackend]:
        return AscendSFABackend


class AscendSFAIndexCache(PagedCacheLayer):
    """The indexer's key of every token, in eight bits with a scale where the family has it so.

    Args:
        kind: what the cache holds.
        prefix: unique name with exactly one integer, the layer's number.
        context: the exchanges with the ranks that share contexts, if any do.
    """

    def __init__(
        self, kind: CacheKind, prefix: str, context: ContextParallel | None = None
    ) -> None:
        super().__init__(kind, prefix)
        self.context = context

    def bind_kv_cache(self, kv_cache: torch.Tensor) -> None:
        """Take the cache that the engine allocated."""
        self.kv_cache = kv_cache
        self.rows, self.scales = index_views(kv_cache, self.kind)

    def get_attn_backend(self) -> type[AttentionBackend]:
        return AscendSFABackend
