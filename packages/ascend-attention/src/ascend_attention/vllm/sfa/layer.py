"""SFAAttention: the projections, the indexer, the caches and the attention of one layer."""

from __future__ import annotations

from collections.abc import Iterable

import torch

from ascend_attention.caches import CacheRole, sparse_mla_caches
from ascend_attention.layers.context_parallel import ContextParallel
from ascend_attention.layers.mla import AscendMultiHeadLatentAttention, MLAShape
from ascend_attention.layers.token_indexer import IndexerShape, TokenIndexer
from ascend_attention.step_bytes import IndexerSize
from ascend_attention.vllm.mla.latent_layer import LatentLayer
from ascend_attention.vllm.sfa.cache_layers import AscendSFAIndexCache, AscendSFALatentCache
from ascend_attention.vllm.sfa.impl import AscendSFAImpl
from ascend_attention.vllm.sfa.indexer import IndexerWrapper
from ascend_attention.vllm.sfa.shared import SharedSelection


class SFAAttention(LatentLayer):
    """Latent attention of one layer over the tokens that an indexer selects.

    Args:
        shape: sizes.
        indexer: sizes of the layer's indexer; None for a layer that takes over the selection of
            one in front of it (see :func:`share_selections`).
        dtype: the model's dtype.
        prefix: name of the layer, with its number.
        device: device family of the cache table.
        block_tokens: tokens per block, or None for the family's default.
        keep_dtype: caches keep the model's dtype, whatever the family fixes.
        int8_latents: latents are cached in eight bits.
        context: the exchanges with the ranks that share contexts, if any do.
    """

    def __init__(
        self,
        shape: MLAShape,
        indexer: IndexerShape | None,
        dtype: torch.dtype,
        prefix: str,
        *,
        device: str = "cpu",
        block_tokens: int | None = None,
        keep_dtype: bool = False,
        int8_latents: bool = False,
        context: ContextParallel | None = None,
    ) -> None:
        super().__init__()
        self.weights = AscendMultiHeadLatentAttention(shape, dtype)
        kinds = sparse_mla_caches(
            kv_lora_rank=shape.kv_lora_rank,
            rotary_dim=shape.rope_dim,
            index_head_dim=None if indexer is None else indexer.head_dim,
            dtype=dtype,
            device=device,
            block_tokens=block_tokens,
            keep_dtype=keep_dtype,
            int8_latents=int8_latents,
        )
        role = CacheRole.LATENT
        name = f"{prefix}.{role}"
        query = shape.row_width, dtype
        self.cache = AscendSFALatentCache(kinds[role], shape.kv_lora_rank, name, context, query)
        self.indexer: TokenIndexer | None = None
        self.index_cache: AscendSFAIndexCache | None = None
        wrapper = None
        if indexer is not None:
            role = CacheRole.INDEX_KEY
            self.indexer = TokenIndexer(indexer, dtype)
            self.index_cache = AscendSFAIndexCache(kinds[role], f"{prefix}.{role}", context)
            wrapper = IndexerWrapper(self.indexer, self.index_cache)
        self.impl = AscendSFAImpl(self.weights, self.cache, wrapper)
        self.choose_layout(device)

    def selecting(self) -> IndexerSize | None:
        """The layer's indexer; a layer without one takes less than those that have one."""
        if self.indexer is None:
            return None
        shape = self.indexer.shape
        return IndexerSize(shape.num_heads, shape.head_dim, shape.top_k)

    def forward(self, hidden: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
        """``[T, H]``, this rank's part of the sum over heads.

        Args:
            hidden: ``[T, H]`` normed input of the layer.
            cos: ``[T, R / 2]`` float32.
            sin: the same.
        """
        if self.weights.fused is not None:
            return self.weights.output(self.impl.fused(hidden, cos, sin))
        query = self.weights.project(hidden, cos, sin)
        return self.weights.output(self.impl.forward(hidden, query, cos, sin))


def share_selections(layers: Iterable[SFAAttention]) -> None:
    """Let each layer without an indexer take over the selection of the last one with an indexer.

    Args:
        layers: of one model, in order; the first has an indexer.
    """
    selection = SharedSelection()
    for layer in layers:
        if layer.impl.indexer is None:
            selection.takers += 1
        else:
            selection = SharedSelection()
        layer.impl.selection = selection
