"""Definition of the root-mean-square norm."""

from __future__ import annotations

import torch


def rms_norm(x: torch.Tensor, weight: torch.Tensor | None, eps: float) -> torch.Tensor:
    """See :func:`ascend_ops_core.ops.norm.rms_norm`."""
    x_f32 = x.float()
    y = x_f32 * torch.rsqrt(x_f32.square().mean(dim=-1, keepdim=True) + eps)
    if weight is not None:
        y = y * weight.float()
    return y.to(x.dtype)
