"""Definition of attention with a bias for every pair of tokens."""

from __future__ import annotations

import torch


def relative_attention(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, bias: torch.Tensor, scale: float
) -> torch.Tensor:
    """See :func:`ascend_attention.ops.relative_attention.relative_attention`."""
    q, k, v = (one.float().transpose(1, 2) for one in (query, key, value))
    weights = torch.softmax(q @ k.transpose(2, 3) * scale + bias.float(), dim=-1)
    return (weights @ v).transpose(1, 2).to(query.dtype).contiguous()
