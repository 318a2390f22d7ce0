"""The indexer's selection for a CPU with many tokens: one dense product per request."""

from __future__ import annotations

import torch

from ascend_attention.ops.paged_rows import gather_rows, locate_rows
from ascend_attention.step import StepLayout

# Scores of one tile of queries, in elements: bounds the memory of long contexts.
_TILE_ELEMENTS = 1 << 23


def select_entries(
    query: torch.Tensor,
    head_weights: torch.Tensor,
    key_cache: torch.Tensor,
    block_table: torch.Tensor,
    layout: StepLayout,
    ratio: int,
    top_k: int,
) -> torch.Tensor:
    """See :func:`ascend_attention.ops.indexer.select_entries`; as wide as a token has entries."""
    visible = layout.visible_entries(ratio)
    longest = int(visible.max()) if visible.numel() else 0
    kept = min(top_k, longest)
    entries = torch.arange(kept).expand(visible.shape[0], kept)
    selected = torch.where(entries < visible.unsqueeze(-1), entries, -1)
    if longest <= top_k:
        return selected
    for request in range(len(layout.seq_lens)):
        first, last = (int(i) for i in layout.query_start[request : request + 2])
        count = int(layout.seq_lens[request]) // ratio
        if count <= top_k or first == last:
            continue
        row = torch.arange(count)
        index = locate_rows(block_table, torch.tensor(request), row, key_cache.shape[1])
        keys = gather_rows(key_cache, index).float()
        tile = max(1, _TILE_ELEMENTS // (query.shape[1] * count))
        for start in range(first, last, tile):
            part = slice(start, min(start + tile, last))
            selected[part] = _best(query[part], head_weights[part], keys, visible[part], top_k)
    return selected


def _best(
    query: torch.Tensor,
    head_weights: torch.Tensor,
    keys: torch.Tensor,
    visible: torch.Tensor,
    top_k: int,
) -> torch.Tensor:
    tokens, heads, width = query.shape
    scores = (query.reshape(-1, width).float() @ keys.T).relu_().view(tokens, heads, -1)
    scores = torch.bmm(head_weights.unsqueeze(1), scores).squeeze(1)
    hidden = torch.arange(keys.shape[0]) >= visible.unsqueeze(-1)
    best = scores.masked_fill_(hidden, float("-inf")).topk(top_k, dim=-1).indices
    # top-k puts hidden entries last, so unused places stay at the end.
    return torch.where(best < visible.unsqueeze(-1), best, -1)
