"""The cache of an MLA layer as vLLM sees it."""

from __future__ import annotations

import torch
from vllm.v1.attention.backend import AttentionBackend

from ascend_attention.caches import CacheKind, latent_views
from ascend_attention.vllm.dsa.cache_layers import PagedCacheLayer
from ascend_attention.vllm.mla.backend import AscendMLABackend


class AscendMLACache(PagedCacheLayer):
    """Latents and rotated keys of every token.

    Args:
        kind: what the cache holds.
        kv_lora_rank: width of a latent.
        prefix: unique name with exactly one integer, the layer's number.

    Attributes:
        latents: ``[blocks, rows, L]`` of what the engine bound.
        ropes: ``[blocks, rows, R]`` of it.
    """

    def __init__(self, kind: CacheKind, kv_lora_rank: int, prefix: str) -> None:
        super().__init__(kind, prefix)
        self.kv_lora_rank = kv_lora_rank
        self.latents = self.ropes = torch.tensor([])

    def bind_kv_cache(self, kv_cache: torch.Tensor) -> None:
        """Take the cache that the engine allocated."""
        super().bind_kv_cache(kv_cache)
        self.latents, self.ropes = latent_views(kv_cache, self.kv_lora_rank)

    def get_attn_backend(self) -> type[AttentionBackend]:
        return AscendMLABackend
