"""The indexer's selection for a decode batch: all requests in one product."""

from __future__ import annotations

import torch

from ascend_attention.ops.indexer.selection import best_entries
from ascend_attention.ops.paged_rows import gather_rows, locate_rows
from ascend_attention.step import StepLayout

# Gathered keys and scores, in elements; beyond it one product per request is as good.
_MOST_ELEMENTS = 1 << 23


def supports(query: torch.Tensor, layout: StepLayout, longest: int) -> bool:
    """Several requests with equally many tokens, whose padded keys and scores stay small.

    Args:
        query: ``[T, H, D]``.
        layout: the step.
        longest: entries that the longest request sees.
    """
    lens = layout.query_lens
    if len(lens) < 2 or int(lens[0]) == 0 or not bool((lens == lens[0]).all()):
        return False
    rows = len(lens) * longest
    return rows * (query.shape[2] + int(lens[0]) * query.shape[1]) <= _MOST_ELEMENTS


def select_entries(
    query: torch.Tensor,
    head_weights: torch.Tensor,
    key_cache: torch.Tensor,
    block_table: torch.Tensor,
    visible: torch.Tensor,
    longest: int,
    top_k: int,
) -> torch.Tensor:
    """See :func:`ascend_attention.ops.indexer.select_entries`; ``longest`` exceeds ``top_k``.

    Args:
        query: ``[T, H, D]``.
        head_weights: ``[T, H]`` float32.
        key_cache: ``[B, P, D]``.
        block_table: ``[R, nb]``.
        visible: ``[T]`` entries that each token sees.
        longest: the largest of them.
        top_k: entries to keep.
    """
    tokens, heads, width = query.shape
    requests = block_table.shape[0]
    each = tokens // requests
    request = torch.arange(requests).unsqueeze(-1)
    row = torch.arange(longest).expand(requests, longest)
    # A shorter request reads rows that are not its own; they are masked below.
    keys = gather_rows(key_cache, locate_rows(block_table, request, row, key_cache.shape[1]))
    flat = query.reshape(requests, each * heads, width).float()
    scores = torch.bmm(flat, keys.float().transpose(1, 2)).relu_().view(tokens, heads, longest)
    scores = torch.bmm(head_weights.unsqueeze(1), scores).squeeze(1)
    hidden = row[0] >= visible.unsqueeze(-1)
    return best_entries(scores.masked_fill_(hidden, float("-inf")), visible, top_k)
