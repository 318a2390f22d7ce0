"""Definition of the count of NaN."""

from __future__ import annotations

import torch


def num_nans(logits: torch.Tensor) -> torch.Tensor:
    """See :func:`ascend_ops_core.ops.sampling.num_nans`."""
    return logits.isnan().sum(dim=-1, dtype=torch.int32)
