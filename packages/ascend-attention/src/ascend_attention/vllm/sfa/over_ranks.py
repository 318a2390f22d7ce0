"""Sparse latent attention where ranks share contexts (decode context parallelism).

All ranks compute the indexer's queries and keys of all heads, so only candidates travel before the
selection; see :mod:`ascend_attention.layers.context_parallel` for the attention itself.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

import torch

from ascend_attention.layers.context_parallel import ContextParallel
from ascend_attention.layers.context_routes import ContextRoutes, GatheredRows, SentQueries
from ascend_attention.layers.mla import MLAQuery
from ascend_attention.layers.token_indexer import IndexerInputs
from ascend_attention.ops.context_parallel import local_tokens
from ascend_attention.ops.context_parallel.candidates import best_candidates, token_candidates
from ascend_attention.ops.quantized_mla import quantized_sparse_mla
from ascend_attention.ops.quantized_mla_states import quantized_mla_states
from ascend_attention.ops.sparse_mla import sparse_mla
from ascend_attention.ops.sparse_mla_states import sparse_mla_states
from ascend_attention.ops.token_indexer import select_tokens

if TYPE_CHECKING:
    from ascend_attention.vllm.sfa.impl import AscendSFAImpl
    from ascend_attention.vllm.sfa.metadata import AscendSFAMetadata


class Selected(NamedTuple):
    """What a layer's queries attend to, which layers without an indexer take over.

    Attributes:
        rows: ``[T, K]`` int32 rows on this rank of tokens that send their queries.
        tokens: ``[T, K]`` int32 token numbers of those that attend to gathered rows.
    """

    rows: torch.Tensor | None
    tokens: torch.Tensor | None


def over_ranks(
    impl: AscendSFAImpl,
    hidden: torch.Tensor,
    query: MLAQuery,
    cos: torch.Tensor,
    sin: torch.Tensor,
    meta: AscendSFAMetadata,
    routes: ContextRoutes,
) -> torch.Tensor:
    """``[T, h, V]`` of a step whose latents are written; all ranks call it together."""
    context, weights = impl.cache.context, impl.weights
    assert context is not None, impl.cache.prefix
    sent, gathered = routes.sent, routes.gathered
    made = None
    caches = impl.cache.parts
    latents = len(caches)
    if impl.indexer is not None:
        made = impl.indexer.prepare(hidden, query.q_input, cos, sin, meta)
        keys = impl.indexer.cache
        caches = [*caches, keys.rows]
        if keys.scales is not None:
            caches.append(keys.scales.unsqueeze(-1))
    found = [] if gathered is None else context.gather_blocks(caches, gathered.blocks)
    if made is None:
        selected: Selected = impl.selection.take()
    else:
        selected = Selected(
            None if sent is None else _select_sent(impl, context, made, meta, sent),
            None if gathered is None else _select_gathered(impl, made, found[latents:], gathered),
        )
        impl.selection.offer(selected)
    latent = weights.absorb(query.q_nope)
    if gathered is None:
        assert sent is not None
        return weights.values(_send(impl, context, latent, query.q_rope, meta, sent, selected))
    # Padding is in neither part.
    attended = torch.zeros_like(latent, memory_format=torch.contiguous_format)
    assert selected.tokens is not None
    attend: Callable[..., torch.Tensor] = sparse_mla
    if impl.cache.quantised:
        attend = quantized_sparse_mla
    attended[gathered.index] = attend(
        latent[gathered.index],
        query.q_rope[gathered.index],
        *found[:latents],
        selected.tokens,
        gathered.block_table,
        gathered.query_ends,
        gathered.seq_lens,
        weights.shape.scale,
    )
    if sent is not None:
        attended[sent.index] = _send(
            impl, context, latent[sent.index], query.q_rope[sent.index], meta, sent, selected
        )
    return weights.values(attended)


def _select_sent(
    impl: AscendSFAImpl,
    context: ContextParallel,
    made: IndexerInputs,
    meta: AscendSFAMetadata,
    sent: SentQueries,
) -> torch.Tensor:
    """Rows of this rank that queries selected of the whole context."""
    assert impl.indexer is not None
    cache, top_k = impl.indexer.cache, impl.indexer.indexer.shape.top_k
    if sent.most_tokens <= top_k:
        # All tokens are kept, whatever their scores.
        row = torch.arange(max(1, sent.most_rows), dtype=torch.int32, device=sent.rows.device)
        return torch.where(row < sent.rows.unsqueeze(-1), row, -1)
    query, head_weights = made.query, made.head_weights
    if sent.index is not None:
        query, head_weights = query[sent.index], head_weights[sent.index]
    own = token_candidates(
        query,
        head_weights,
        cache.rows,
        meta.block_table,
        sent.request,
        sent.rows,
        top_k,
        sent.most_rows,
        context.shard,
        key_scale=cache.scales,
    )
    tokens = best_candidates(context.gather_candidates(own), top_k)
    return local_tokens(tokens, context.shard, min(tokens.shape[1], sent.most_rows))


def _select_gathered(
    impl: AscendSFAImpl, made: IndexerInputs, keys: list[torch.Tensor], gathered: GatheredRows
) -> torch.Tensor:
    """Token numbers that queries select among gathered keys."""
    assert impl.indexer is not None
    return select_tokens(
        made.query[gathered.index],
        made.head_weights[gathered.index],
        keys[0],
        gathered.block_table,
        gathered.query_ends,
        gathered.seq_lens,
        max(1, min(impl.indexer.indexer.shape.top_k, gathered.most_tokens)),
        key_scale=keys[1].squeeze(-1) if len(keys) > 1 else None,
        most_tokens=gathered.most_tokens,
    )


def _send(
    impl: AscendSFAImpl,
    context: ContextParallel,
    latent: torch.Tensor,
    rope: torch.Tensor,
    meta: AscendSFAMetadata,
    sent: SentQueries,
    selected: Selected,
) -> torch.Tensor:
    """``[T, h, L]`` of tokens that send their queries."""
    rows, cache, scale = selected.rows, impl.cache, impl.weights.shape.scale
    assert rows is not None
    states: Callable[..., tuple[torch.Tensor, torch.Tensor]] = sparse_mla_states
    if cache.quantised:
        states = quantized_mla_states

    def over_own_rows(
        latent: torch.Tensor, rope: torch.Tensor, part: slice
    ) -> tuple[torch.Tensor, torch.Tensor]:
        return states(
            latent, rope, *cache.parts, rows[part], meta.block_table, sent.request[part], scale
        )

    return context.attend(latent, rope, over_own_rows)
