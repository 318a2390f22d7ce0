"""AscendMLAImpl: the order of work in one layer's latent attention."""

from __future__ import annotations

from typing import cast

import torch

from ascend_attention.layers.mla import AscendMultiHeadLatentAttention, MLAQuery
from ascend_attention.ops.mla_cache import kv_rmsnorm_rope_cache
from ascend_attention.ops.mla_forward import mla_forward
from ascend_attention.vllm.mla.cache_layers import AscendMLACache
from ascend_attention.vllm.mla.metadata import AscendMLAMetadata


class AscendMLAImpl:
    """Writes the cache and attends to it.

    Args:
        weights: projections of the layer.
        cache: its cache.
    """

    def __init__(self, weights: AscendMultiHeadLatentAttention, cache: AscendMLACache) -> None:
        self.weights = weights
        self.cache = cache

    def forward(self, query: MLAQuery, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
        """``[T, h, V]``; zeros in a dummy run without caches.

        Args:
            query: of the step's tokens, and of padding rows behind them.
            cos: ``[T, R / 2]`` float32.
            sin: the same.
        """
        rows, shape = query.kv.shape[0], self.weights.shape
        meta = cast(AscendMLAMetadata | None, self.cache.metadata())
        if meta is None:
            return query.kv.new_zeros((rows, shape.num_heads, shape.value_dim))
        tokens = meta.layout.num_tokens
        if tokens == rows:
            return self._step(query, cos, sin, meta)
        out = query.kv.new_empty((rows, shape.num_heads, shape.value_dim))
        step = MLAQuery(
            query.q_input[:tokens], query.q_nope[:tokens], query.q_rope[:tokens], query.kv[:tokens]
        )
        out[:tokens] = self._step(step, cos[:tokens], sin[:tokens], meta)
        # Padding rows beyond the step's tokens must not carry garbage into the collectives.
        out[tokens:] = 0
        return out

    def write(
        self, kv: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, meta: AscendMLAMetadata
    ) -> None:
        """Cache the step's tokens."""
        weights, cache = self.weights, self.cache
        kv_rmsnorm_rope_cache(
            kv,
            weights.kv_a_norm,
            weights.shape.norm_eps,
            cos,
            sin,
            cache.latents,
            cache.ropes,
            meta.write,
            interleaved=weights.shape.interleaved,
        )

    def attend(self, query: MLAQuery, meta: AscendMLAMetadata) -> torch.Tensor:
        """``[T, h, V]`` of the step's tokens, whose rows are cached already."""
        layout = meta.layout
        # A CPU has no use for them.
        ends, lens = ((), ()) if query.kv.is_cpu else layout.host_lengths
        return mla_forward(
            query.q_nope,
            query.q_rope,
            self.cache.latents,
            self.cache.ropes,
            self.weights.kv_b,
            meta.block_table,
            layout.request,
            layout.position,
            self.weights.shape.scale,
            query_ends=ends,
            seq_lens=lens,
        )

    def _step(
        self, query: MLAQuery, cos: torch.Tensor, sin: torch.Tensor, meta: AscendMLAMetadata
    ) -> torch.Tensor:
        self.write(query.kv, cos, sin, meta)
        return self.attend(query, meta)
