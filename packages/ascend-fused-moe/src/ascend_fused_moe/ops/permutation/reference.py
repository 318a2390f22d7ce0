"""Definitions of the permutation by experts, with shapes that do not depend on values."""

from __future__ import annotations

import torch

from ascend_fused_moe.permutation import sorted_rows, unpermute


def permute_rows(
    x: torch.Tensor, ids: torch.Tensor, experts: int
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """See :func:`ascend_fused_moe.ops.permutation.permute_rows`; what is no choice comes last."""
    order, index, counts = sorted_rows(ids.long(), experts)
    return x[order // max(ids.shape[1], 1)], index, counts


def combine_rows(
    rows: torch.Tensor, index: torch.Tensor, weights: torch.Tensor, complete: bool
) -> torch.Tensor:
    """See :func:`ascend_fused_moe.ops.permutation.combine_rows`."""
    return unpermute(rows, index, weights)
