"""Definition of top-k and top-p: by sorting."""

from __future__ import annotations

import torch

_GONE = float("-inf")


def top_k_top_p(
    logits: torch.Tensor, k: torch.Tensor | None, p: torch.Tensor | None
) -> torch.Tensor:
    """See :func:`ascend_ops_core.ops.sampling.top_k_top_p`."""
    vocabulary = logits.shape[1]
    if logits.numel() == 0:
        return logits.clone(memory_format=torch.contiguous_format)
    values, places = logits.float().sort(dim=-1, stable=True)
    if k is not None:
        wanted = torch.where((k > 0) & (k < vocabulary), k, vocabulary).long()
        smallest = values.gather(1, (vocabulary - wanted)[:, None])
        values = values.masked_fill(values < smallest, _GONE)
    if p is not None:
        mass = values.softmax(dim=-1).cumsum(dim=-1)
        outside = mass <= 1 - p.float()[:, None]
        outside[:, -1] = False
        outside &= (p < 1)[:, None]
        values = values.masked_fill(outside, _GONE)
    kept = torch.empty_like(values).scatter_(1, places, values)
    return kept.to(logits.dtype)
