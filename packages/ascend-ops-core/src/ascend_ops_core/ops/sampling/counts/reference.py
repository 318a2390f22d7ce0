"""Definition of the token counts."""

from __future__ import annotations

import torch


def token_bin_counts_and_mask(
    tokens: torch.Tensor, vocabulary: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """See :func:`ascend_ops_core.ops.sampling.token_bin_counts_and_mask`."""
    ids = tokens.long()
    # Whatever is no token falls into one bin more, which is cut off.
    ids = torch.where((ids >= 0) & (ids < vocabulary), ids, vocabulary)
    bins = torch.zeros(len(tokens), vocabulary + 1, dtype=torch.int32, device=tokens.device)
    bins.scatter_add_(1, ids, torch.ones_like(ids, dtype=torch.int32))
    counts = bins[:, :vocabulary].contiguous()
    return counts, counts > 0
