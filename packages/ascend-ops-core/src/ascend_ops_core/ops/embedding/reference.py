"""Definition of the vocabulary range."""

from __future__ import annotations

import torch


def mask_vocab_range(
    ids: torch.Tensor,
    org_start: int,
    org_end: int,
    org_padding: int,
    added_start: int,
    added_end: int,
) -> tuple[torch.Tensor, torch.Tensor]:
    """See :func:`ascend_ops_core.ops.embedding.mask_vocab_range`."""
    in_org = (ids >= org_start) & (ids < org_end)
    in_added = (ids >= added_start) & (ids < added_end)
    added_offset = added_start - (org_end - org_start) - org_padding
    rows = torch.where(in_org, ids - org_start, torch.where(in_added, ids - added_offset, 0))
    return rows, ~(in_org | in_added)
