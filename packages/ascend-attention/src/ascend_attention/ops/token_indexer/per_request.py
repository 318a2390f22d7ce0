"""The selection for a CPU with many queries: one dense product per request."""

from __future__ import annotations

import torch

from ascend_attention.ops.paged_rows import gather_rows, locate_rows
from ascend_attention.ops.token_indexer.batch import best_tokens, owners

# Scores of one tile of queries, in elements: bounds the memory of long contexts.
_TILE_ELEMENTS = 1 << 22


def select_tokens(
    query: torch.Tensor,
    head_weights: torch.Tensor,
    key_cache: torch.Tensor,
    block_table: torch.Tensor,
    query_ends: torch.Tensor,
    seq_lens: torch.Tensor,
    top_k: int,
) -> torch.Tensor:
    """See :func:`ascend_attention.ops.token_indexer.select_tokens`; keys are floats."""
    tokens = query.shape[0]
    _, seen = owners(query_ends, seq_lens, tokens)
    selected = best_tokens(query.new_empty((tokens, 0), dtype=torch.float32), seen, top_k)
    first = 0
    for request, (last, context) in enumerate(
        zip(query_ends.tolist(), seq_lens.tolist(), strict=True)
    ):
        last = min(last, tokens)
        if context > top_k and last > first:
            index = locate_rows(
                block_table, torch.tensor(request), torch.arange(context), key_cache.shape[1]
            )
            keys = gather_rows(key_cache, index).float()
            tile = max(1, _TILE_ELEMENTS // (query.shape[1] * context))
            for start in range(first, last, tile):
                part = slice(start, min(start + tile, last))
                if int(seen[part][-1]) > top_k:
                    selected[part] = _best(query[part], head_weights[part], keys, seen[part], top_k)
        first = max(first, last)
    return selected


def _best(
    query: torch.Tensor,
    head_weights: torch.Tensor,
    keys: torch.Tensor,
    seen: torch.Tensor,
    top_k: int,
) -> torch.Tensor:
    tokens, heads, width = query.shape
    # Keys behind the last query's own are seen by none of them.
    keys = keys[: int(seen[-1])]
    scores = (query.reshape(-1, width).float() @ keys.T).relu_().view(tokens, heads, -1)
    scores = torch.bmm(head_weights.unsqueeze(1), scores).squeeze(1)
    hidden = torch.arange(keys.shape[0]) >= seen.unsqueeze(-1)
    scores = scores.masked_fill_(hidden, float("-inf"))
    values, best = scores.topk(top_k, dim=-1)
    least = values[:, -1:]
    cut = (scores == least).sum(-1) > (values == least).sum(-1)
    many = seen > top_k
    if bool((cut & many).any()):
        return best_tokens(scores, seen, top_k)
    place = torch.arange(top_k)
    few = torch.where(place < seen.unsqueeze(-1), place, -1)
    return torch.where(many.unsqueeze(-1), best, few).int()
