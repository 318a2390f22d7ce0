"""Who a query belongs to and what it sees, on any device and without a copy to the host."""

from __future__ import annotations

import torch

# Scores of one launch, in elements: bounds the memory of long contexts.
_MOST_SCORES = 1 << 24


def selected_at_once(most_tokens: int) -> int:
    """Queries whose scores of ``most_tokens`` tokens are held at the same time on an NPU."""
    return max(1, _MOST_SCORES // most_tokens)


def owners(
    query_ends: torch.Tensor, seq_lens: torch.Tensor, tokens: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Request of every query, and how many tokens of it the query sees.

    Args:
        query_ends: ``[R]`` int32, queries of the request and of all before it.
        seq_lens: ``[R]`` int32, context length of every request, its queries included.
        tokens: ``T``, padding included.

    Returns:
        ``[T]`` int32 each. Padding (behind the last query, or of a request without context)
        belongs to request 0 or to its own, and sees 0.
    """
    at = torch.arange(tokens, dtype=torch.int32, device=query_ends.device)
    if not query_ends.shape[0]:
        return at * 0, at * 0
    request = torch.searchsorted(query_ends, at, right=True, out_int32=True)
    inside = request < query_ends.shape[0]
    request = torch.where(inside, request, 0)
    seen = seq_lens[request.long()] - query_ends[request.long()] + at + 1
    return request, torch.where(inside, seen, 0).clamp(min=0)


def best_tokens(scores: torch.Tensor, seen: torch.Tensor, top_k: int) -> torch.Tensor:
    """``[T, top_k]`` int32: the tokens with the largest scores, best first, then -1.

    Among equal scores the earlier token comes first. A query that sees at most ``top_k`` tokens
    gets them in order.

    Args:
        scores: ``[T, width]`` float32, -inf where a token is not seen.
        seen: ``[T]`` integer, tokens that each query sees, at most ``width``.
        top_k: columns.
    """
    place = torch.arange(top_k, dtype=torch.int32, device=scores.device)
    seen = seen.unsqueeze(-1)
    chosen = torch.where(place < seen, place, -1)
    if scores.shape[1] > top_k:
        # A top-k of torch leaves open which of equal scores it keeps; a stable sort does not.
        order = scores.sort(dim=-1, descending=True, stable=True).indices[:, :top_k]
        chosen = torch.where(seen > top_k, order.int(), chosen)
    return chosen
