"""The selection with the indexer's scores in Triton, and torch's stable sort."""

from __future__ import annotations

import torch

from ascend_attention.ops.indexer.kernels import indexer_scores
from ascend_attention.ops.token_indexer.batch import best_tokens, owners, selected_at_once


def select_tokens(
    query: torch.Tensor,
    head_weights: torch.Tensor,
    key_cache: torch.Tensor,
    query_scale: torch.Tensor | None,
    key_scale: torch.Tensor | None,
    block_table: torch.Tensor,
    query_ends: torch.Tensor,
    seq_lens: torch.Tensor,
    top_k: int,
    most_tokens: int,
) -> torch.Tensor:
    """See :func:`ascend_attention.ops.token_indexer.select_tokens`.

    Sorting stays in torch, which does it on the device; in Triton it would need a prefix sum over
    whole rows, which the compiler turns into scalar loops.
    """
    tokens = query.shape[0]
    request, seen = owners(query_ends, seq_lens, tokens)
    if query_scale is not None:
        head_weights = head_weights * query_scale
    if most_tokens <= top_k:
        return best_tokens(query.new_empty((tokens, 0), dtype=torch.float32), seen, top_k)
    out = torch.empty((tokens, top_k), dtype=torch.int32, device=query.device)
    tile = selected_at_once(most_tokens)
    for start in range(0, tokens, tile):
        part = slice(start, start + tile)
        scores = indexer_scores(
            query[part],
            head_weights[part],
            key_cache,
            key_scale,
            block_table,
            request[part],
            seen[part],
            most_tokens,
        )
        out[part] = best_tokens(scores, seen[part], top_k)
    return out
