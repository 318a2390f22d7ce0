"""The cache of an MLA layer as vLLM sees it."""

from __future__ import annotations

import torch
from vllm.v1.attention.backend import AttentionBackend

from ascend_attention.caches import CacheKind, latent_views
from ascend_attention.layers.context_parallel import ContextParallel
from ascend_attention.step_bytes import StepSize, context_bytes
from ascend_attention.vllm.dsa.cache_layers import PagedCacheLayer
from ascend_attention.vllm.mla.backend import AscendMLABackend


class AscendMLACache(PagedCacheLayer):
    """Latents and rotated keys of every token.

    Args:
        kind: what the cache holds.
        kv_lora_rank: width of a latent.
        prefix: unique name with exactly one integer, the layer's number.
        context: the exchanges with the ranks that share contexts, if any do.
        query: width and dtype of a query, where rows are stored otherwise.

    Attributes:
        latents: ``[blocks, rows, L]`` of what the engine bound.
        ropes: ``[blocks, rows, R]`` of it.
    """

    def __init__(
        self,
        kind: CacheKind,
        kv_lora_rank: int,
        prefix: str,
        context: ContextParallel | None = None,
        query: tuple[int, torch.dtype] | None = None,
    ) -> None:
        super().__init__(kind, prefix)
        self.context = context
        self.query = query or (kind.width, kind.dtype)
        self.kv_lora_rank = kv_lora_rank
        self.latents = self.ropes = torch.tensor([])

    @property
    def apart(self) -> bool:
        """Whether latents lie in front of all rotated keys, as torch_npu's operators write them."""
        return True

    def bind_kv_cache(self, kv_cache: torch.Tensor) -> None:
        """Take the cache that the engine allocated."""
        super().bind_kv_cache(kv_cache)
        self.latents, self.ropes = latent_views(kv_cache, self.kv_lora_rank)

    def exchanged_bytes(self, step: StepSize) -> int:
        """Bytes that the layer exchanges with the ranks that share its contexts.

        Args:
            step: the largest step.
        """
        if self.context is None:
            return 0
        return context_bytes(
            step,
            ranks=self.context.shard.ranks,
            heads=self.context.num_heads,
            latent=self.kv_lora_rank,
            row=self.query[0],
            itemsize=self.query[1].itemsize,
            row_bytes=self.kind.row_bytes,
        )

    def get_attn_backend(self) -> type[AttentionBackend]:
        return AscendMLABackend
