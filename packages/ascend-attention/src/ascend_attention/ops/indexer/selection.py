"""What becomes of scores: the best entries, in torch, on any device and without a copy to the host.

Shared by the definition and the NPU implementation; its own oracle is brute force in the tests.
"""

from __future__ import annotations

import torch

# Scores that are held at once, in elements: bounds the memory of long contexts.
_MOST_SCORES = 1 << 26


def tokens_at_once(width: int) -> int:
    """Tokens whose scores of ``width`` entries are held at the same time on an NPU."""
    return max(1, _MOST_SCORES // max(width, 1))


def entries_in_order(visible: torch.Tensor, top_k: int) -> torch.Tensor:
    """``[T, top_k]`` int64: the first entries that each token sees, then -1.

    Args:
        visible: ``[T]`` integer, entries that each token sees.
        top_k: columns.
    """
    entry = torch.arange(top_k, device=visible.device)
    return torch.where(entry < visible.unsqueeze(-1), entry, -1)


def best_entries(scores: torch.Tensor, visible: torch.Tensor, top_k: int) -> torch.Tensor:
    """``[T, top_k]`` int64: the entries with the largest scores, best first, then -1.

    A token that sees at most ``top_k`` entries gets them in order.

    Args:
        scores: ``[T, width]``, -inf where an entry is not visible.
        visible: ``[T]`` integer, entries that each token sees.
        top_k: columns; at most ``width``.
    """
    seen = visible.unsqueeze(-1)
    # top-k puts hidden entries last, so unused places stay at the end.
    best = scores.topk(top_k, dim=-1).indices
    best = torch.where(best < seen, best, -1)
    return torch.where(seen <= top_k, entries_in_order(visible, top_k), best)
