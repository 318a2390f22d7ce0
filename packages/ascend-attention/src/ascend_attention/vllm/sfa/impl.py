"""AscendSFAImpl: the order of work in one layer's sparse latent attention."""

from __future__ import annotations

import torch
from ascend_ops_core.ops.norm import rms_norm
from ascend_ops_core.ops.rotary import apply_rotary

from ascend_attention.layers.mla import AscendMultiHeadLatentAttention, MLAQuery
from ascend_attention.ops.mla_cache import kv_rmsnorm_rope_cache
from ascend_attention.ops.paged_rows import RowIndex
from ascend_attention.ops.quantized_mla import quantize_mla_rows, quantized_sparse_mla
from ascend_attention.ops.sparse_mla import sparse_mla
from ascend_attention.vllm.mla.impl import fused_prologue, padded
from ascend_attention.vllm.sfa.cache_layers import AscendSFALatentCache
from ascend_attention.vllm.sfa.indexer import IndexerWrapper
from ascend_attention.vllm.sfa.metadata import AscendSFAMetadata
from ascend_attention.vllm.sfa.over_ranks import over_ranks
from ascend_attention.vllm.sfa.shared import DraftSelection, SharedSelection


class AscendSFAImpl:
    """Writes the caches, selects tokens, and attends to them.

    Args:
        weights: projections of the layer.
        cache: its latents.
        indexer: what selects; None in a layer that takes over another's selection.

    Attributes:
        selection: where selections are passed on to other layers, or come from.
        drafts: where the selection of a draft's first step waits for the others, if they share it.
    """

    def __init__(
        self,
        weights: AscendMultiHeadLatentAttention,
        cache: AscendSFALatentCache,
        indexer: IndexerWrapper | None,
    ) -> None:
        self.weights = weights
        self.cache = cache
        self.indexer = indexer
        self.selection = SharedSelection()
        self.drafts: DraftSelection | None = None

    def forward(
        self, hidden: torch.Tensor, query: MLAQuery, cos: torch.Tensor, sin: torch.Tensor
    ) -> torch.Tensor:
        """``[T, h, V]``; zeros in a dummy run without caches.

        Args:
            hidden: ``[T, H]`` normed input of the layer.
            query: of the step's tokens, and of padding rows behind them.
            cos: ``[T, R / 2]`` float32.
            sin: the same.
        """
        rows, shape = query.kv.shape[0], self.weights.shape
        meta: AscendSFAMetadata | None = self.cache.metadata()
        if meta is None:
            return query.kv.new_zeros((rows, shape.num_heads, shape.value_dim))
        tokens = meta.num_tokens
        if tokens == rows:
            return self._step(hidden, query, cos, sin, meta)
        out = query.kv.new_zeros((rows, shape.num_heads, shape.value_dim))
        step = MLAQuery(
            query.q_input[:tokens], query.q_nope[:tokens], query.q_rope[:tokens], query.kv[:tokens]
        )
        # Padding rows beyond the step's tokens must not carry garbage into the collectives.
        out[:tokens] = self._step(hidden[:tokens], step, cos[:tokens], sin[:tokens], meta)
        return out

    def fused(self, hidden: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
        """:meth:`forward` where one operator does all that is in front of attention.

        Args:
            hidden: ``[T, H]`` normed input of the layer, padding rows behind the step's tokens.
            cos: ``[T, R / 2]`` float32.
            sin: the same.
        """
        rows, shape = hidden.shape[0], self.weights.shape
        meta: AscendSFAMetadata | None = self.cache.metadata()
        if meta is None:
            return hidden.new_zeros((rows, shape.num_heads, shape.value_dim))
        tokens = meta.num_tokens
        hidden, cos, sin = hidden[:tokens], cos[:tokens], sin[:tokens]
        made = fused_prologue(self, hidden, cos, sin, meta.write)
        selected = self._select(hidden, made.q_input, cos, sin)
        return padded(self._attend(made.q_latent, made.q_rope, selected, meta), rows)

    def _step(
        self,
        hidden: torch.Tensor,
        query: MLAQuery,
        cos: torch.Tensor,
        sin: torch.Tensor,
        meta: AscendSFAMetadata,
    ) -> torch.Tensor:
        weights = self.weights
        self._write(query.kv, cos, sin, meta.write)
        if meta.routes is not None:
            return over_ranks(self, hidden, query, cos, sin, meta, meta.routes)
        selected = self._select(hidden, query.q_input, cos, sin)
        return self._attend(weights.absorb(query.q_nope), query.q_rope, selected, meta)

    def _select(
        self, hidden: torch.Tensor, q_input: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor
    ) -> torch.Tensor:
        if self.indexer is None:
            taken: torch.Tensor = self.selection.take()
            return taken
        if self.drafts is not None and self.drafts.repeating:
            return self.drafts.take(hidden.shape[0])
        selected = self.indexer.select(hidden, q_input, cos, sin)
        self.selection.offer(selected)
        if self.drafts is not None:
            self.drafts.keep(selected)
        return selected

    def _attend(
        self,
        latent: torch.Tensor,
        rope: torch.Tensor,
        selected: torch.Tensor,
        meta: AscendSFAMetadata,
    ) -> torch.Tensor:
        weights, cache = self.weights, self.cache
        if latent.device.type != "cpu":
            # torch_npu takes no queries with gaps, and a slower kernel would run instead.
            latent, rope = latent.contiguous(), rope.contiguous()
        step = selected, meta.block_table, meta.query_ends, meta.seq_lens, weights.shape.scale
        if cache.quantised:
            attended = quantized_sparse_mla(latent, rope, cache.rows, *step)
        else:
            attended = sparse_mla(latent, rope, cache.latents, cache.ropes, *step)
        return weights.values(attended)

    def _write(
        self, kv: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, index: RowIndex
    ) -> None:
        """Cache the latents and rotated keys ``kv [T, L + R]`` of the step's tokens."""
        cache, shape, norm = self.cache, self.weights.shape, self.weights.kv_a_norm
        eps, interleaved = shape.norm_eps, shape.interleaved
        if not cache.quantised:
            kv_rmsnorm_rope_cache(
                kv, norm, eps, cos, sin, cache.latents, cache.ropes, index,
                interleaved=interleaved, split=self.weights.split,
            )  # fmt: skip
            return
        latent, rope = kv.split([shape.kv_lora_rank, shape.rope_dim], dim=-1)
        latent = rms_norm(latent.contiguous(), norm, eps)
        rope = apply_rotary(rope.unsqueeze(1), cos, sin, interleaved=interleaved).squeeze(1)
        quantize_mla_rows(cache.rows, latent, rope, *index)
