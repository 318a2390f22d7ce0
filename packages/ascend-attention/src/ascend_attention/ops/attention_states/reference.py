"""Definition of the merge of attention's parts."""

from __future__ import annotations

import torch


def merge_attention_states(
    outs: torch.Tensor, lses: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """See :func:`ascend_attention.ops.attention_states.merge_attention_states`."""
    lse = lses.logsumexp(dim=0)
    # Where no part has a token every difference is -inf minus itself.
    weights = (lses - lse).exp().masked_fill(lses == float("-inf"), 0).unsqueeze(-1)
    # Garbage times zero may be NaN.
    out = torch.where(weights > 0, outs.float() * weights, 0).sum(dim=0)
    return out.to(outs.dtype), lse
