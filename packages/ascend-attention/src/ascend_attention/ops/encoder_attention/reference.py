"""Definition of attention within sequences that lie behind each other."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import torch


def encoder_attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    cu_seqlens: torch.Tensor,
    scale: float,
    ends: Sequence[int],
) -> torch.Tensor:
    """See :func:`ascend_attention.ops.encoder_attention.encoder_attention`."""
    out = torch.zeros_like(query, memory_format=torch.contiguous_format)
    group = query.shape[1] // key.shape[1]
    last = list(ends) or cu_seqlens[1:].tolist()
    for start, end in pairwise([0, *last]):
        if end > start:
            q, k, v = (one[start:end].float().transpose(0, 1) for one in (query, key, value))
            k, v = (one.repeat_interleave(group, 0) for one in (k, v))
            attended = torch.softmax(q @ k.transpose(1, 2) * scale, dim=-1) @ v
            out[start:end] = attended.transpose(0, 1).to(out.dtype)
    return out
