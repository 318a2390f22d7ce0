"""AscendMLAImpl: the order of work in one layer's latent attention."""

from __future__ import annotations

from typing import Protocol, cast

import torch

from ascend_attention.layers.context_parallel import ContextParallel
from ascend_attention.layers.context_routes import ContextRoutes, GatheredRows, SentQueries
from ascend_attention.layers.mla import AscendMultiHeadLatentAttention, MLAQuery
from ascend_attention.ops.mla_attention import mla_attention
from ascend_attention.ops.mla_cache import kv_rmsnorm_rope_cache
from ascend_attention.ops.mla_forward import mla_forward
from ascend_attention.ops.mla_prolog import Prologue, mla_prolog
from ascend_attention.ops.paged_rows import RowIndex
from ascend_attention.vllm.mla.cache_layers import AscendMLACache
from ascend_attention.vllm.mla.metadata import AscendMLAMetadata


class HasPrologue(Protocol):
    """What attends in a layer, over all tokens or over selected ones."""

    @property
    def weights(self) -> AscendMultiHeadLatentAttention:
        """Projections of the layer."""
        ...

    @property
    def cache(self) -> AscendMLACache:
        """Its latents and rotated keys."""
        ...


def fused_prologue(
    impl: HasPrologue,
    hidden: torch.Tensor,
    cos: torch.Tensor,
    sin: torch.Tensor,
    index: RowIndex,
) -> Prologue:
    """What attention reads of a step's tokens, whose rows are cached by it.

    Args:
        impl: with fused weights and a cache whose latents and rotated keys lie apart.
        hidden: ``[T, H]``.
        cos: ``[T, R / 2]`` float32.
        sin: the same.
        index: where rows go.
    """
    weights, cache = impl.weights, impl.cache
    assert weights.fused is not None, cache.prefix
    return mla_prolog(
        hidden, weights.fused, weights.shape.norm_eps, cos, sin, cache.latents, cache.ropes, index
    )


def padded(values: torch.Tensor, rows: int) -> torch.Tensor:
    """Zeros behind ``values [T, h, V]``, so that no garbage gets into the collectives."""
    behind = rows - values.shape[0]
    return torch.nn.functional.pad(values, (0, 0, 0, 0, 0, behind)) if behind else values


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

    def fused(self, hidden: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
        """:meth:`forward` where one operator does all that is in front of attention.

        Args:
            hidden: ``[T, H]`` normed input of the layer, padding rows behind the step's tokens.
            cos: ``[T, R / 2]`` float32.
            sin: the same.
        """
        weights, cache, rows = self.weights, self.cache, hidden.shape[0]
        meta = cast(AscendMLAMetadata | None, cache.metadata())
        if meta is None:
            return hidden.new_zeros((rows, weights.shape.num_heads, weights.shape.value_dim))
        layout = meta.layout
        tokens = layout.num_tokens
        made = fused_prologue(self, hidden[:tokens], cos[:tokens], sin[:tokens], meta.write)
        ends, lens = ((), ()) if hidden.is_cpu else layout.host_lengths
        attended, _ = mla_attention(
            made.q_latent,
            made.q_rope,
            cache.latents,
            cache.ropes,
            meta.block_table,
            layout.request,
            layout.position,
            weights.shape.scale,
            query_ends=ends,
            seq_lens=lens,
        )
        return padded(weights.values(attended), rows)

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
            split=weights.split,
        )

    def attend(self, query: MLAQuery, meta: AscendMLAMetadata) -> torch.Tensor:
        """``[T, h, V]`` of the step's tokens, whose rows are cached already."""
        layout = meta.layout
        if meta.routes is not None:
            return self._over_ranks(query, meta.block_table, meta.routes)
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

    def _over_ranks(
        self, query: MLAQuery, block_table: torch.Tensor, routes: ContextRoutes
    ) -> torch.Tensor:
        """``[T, h, V]`` where ranks share contexts; all of them call it together."""
        context = self.cache.context
        assert context is not None, self.cache.prefix
        sent, gathered = routes.sent, routes.gathered
        if gathered is None:
            assert sent is not None
            return self._send(context, query.q_nope, query.q_rope, block_table, sent)
        shape = self.weights.shape
        out = query.kv.new_zeros((query.kv.shape[0], shape.num_heads, shape.value_dim))
        out[gathered.index] = self._gather(
            context, query.q_nope[gathered.index], query.q_rope[gathered.index], gathered
        )
        if sent is not None:
            here = sent.index
            out[here] = self._send(
                context, query.q_nope[here], query.q_rope[here], block_table, sent
            )
        return out

    def _send(
        self,
        context: ContextParallel,
        q_nope: torch.Tensor,
        q_rope: torch.Tensor,
        block_table: torch.Tensor,
        sent: SentQueries,
    ) -> torch.Tensor:
        scale, cache = self.weights.shape.scale, self.cache
        # Of a token that sees no row here, the last row's number is that of padding.
        last = sent.rows - 1

        def over_own_rows(
            latent: torch.Tensor, rope: torch.Tensor, part: slice
        ) -> tuple[torch.Tensor, torch.Tensor]:
            return mla_attention(
                latent, rope, cache.latents, cache.ropes, block_table, sent.request[part],
                last[part], scale,
            )  # fmt: skip

        return self.weights.values(
            context.attend(self.weights.absorb(q_nope), q_rope, over_own_rows)
        )

    def _gather(
        self,
        context: ContextParallel,
        q_nope: torch.Tensor,
        q_rope: torch.Tensor,
        gathered: GatheredRows,
    ) -> torch.Tensor:
        caches = (self.cache.latents, self.cache.ropes)
        latents, ropes = context.gather_blocks(caches, gathered.blocks)
        return mla_forward(
            q_nope,
            q_rope,
            latents,
            ropes,
            self.weights.kv_b,
            gathered.block_table,
            gathered.request,
            gathered.position,
            self.weights.shape.scale,
        )
