"""Definitions of the batch-invariant reductions."""

from __future__ import annotations

import torch

from ascend_ops_core.ops.batch_invariant.ordered_sum import ordered_sum


def mean_batch_invariant(x: torch.Tensor, dim: int, keepdim: bool) -> torch.Tensor:
    """See :func:`ascend_ops_core.ops.batch_invariant.mean_batch_invariant`."""
    mean = (ordered_sum(x.float().movedim(dim, 0)) * (1.0 / x.shape[dim])).to(x.dtype)
    return mean.unsqueeze(dim) if keepdim else mean


def rms_norm_batch_invariant(
    x: torch.Tensor, weight: torch.Tensor | None, eps: float
) -> torch.Tensor:
    """See :func:`ascend_ops_core.ops.batch_invariant.rms_norm_batch_invariant`."""
    x_f32 = x.float()
    mean = ordered_sum((x_f32 * x_f32).movedim(-1, 0)) * (1.0 / x.shape[-1])
    # Roots and quotients are rounded correctly, unlike rsqrt.
    y = x_f32 * (1.0 / torch.sqrt(mean + eps)).unsqueeze(-1)
    if weight is not None:
        y = y * weight.float()
    return y.to(x.dtype)


def softmax_batch_invariant(x: torch.Tensor, dim: int) -> torch.Tensor:
    """See :func:`ascend_ops_core.ops.batch_invariant.softmax_batch_invariant`."""
    moved = x.float().movedim(dim, -1)
    shifted = moved - moved.amax(dim=-1, keepdim=True) if moved.numel() else moved
    rows = shifted.reshape(-1, x.shape[dim])
    # exp may round otherwise at the end of a vector, so each row is a vector of its own.
    e = torch.stack([row.clone().exp() for row in rows]) if rows.shape[0] else rows
    share = 1.0 / ordered_sum(e.T)
    return (e * share[:, None]).view(moved.shape).movedim(-1, dim).to(x.dtype)
