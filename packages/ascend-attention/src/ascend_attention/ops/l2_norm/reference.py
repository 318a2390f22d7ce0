"""Definition of the L2 norm."""

from __future__ import annotations

import torch


def l2_norm(x: torch.Tensor, eps: float, scale: float, dtype: torch.dtype) -> torch.Tensor:
    """See :func:`ascend_attention.ops.l2_norm.l2_norm`."""
    y = x.float()
    y = y * (torch.rsqrt(y.square().sum(dim=-1, keepdim=True) + eps) * scale)
    return y.to(dtype, memory_format=torch.contiguous_format)
