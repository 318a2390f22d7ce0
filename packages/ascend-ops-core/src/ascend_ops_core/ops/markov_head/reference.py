"""Definition of the Markov head's step."""

from __future__ import annotations

import torch


def markov_logits(
    base: torch.Tensor,
    tokens: torch.Tensor,
    embedding: torch.Tensor,
    projection: torch.Tensor,
    scale: float,
) -> torch.Tensor:
    """See :func:`ascend_ops_core.ops.markov_head.markov_logits`."""
    correction = embedding[tokens].float() @ projection.float().t()
    return base.float() + scale * correction
