"""Definitions of the norms."""

from __future__ import annotations

import torch


def rms_norm(x: torch.Tensor, weight: torch.Tensor | None, eps: float) -> torch.Tensor:
    """See :func:`ascend_ops_core.ops.norm.rms_norm`."""
    y = divided_by_rms(x.float(), eps)
    if weight is not None:
        y = y * weight.float()
    return y.to(x.dtype)


def rms_norm_bias(
    x: torch.Tensor, weight: torch.Tensor | None, bias: torch.Tensor, eps: float
) -> torch.Tensor:
    """See :func:`ascend_ops_core.ops.norm.rms_norm_bias`."""
    y = divided_by_rms(x.float(), eps)
    if weight is not None:
        y = y * weight.float()
    return (y + bias.float()).to(x.dtype)


def gemma_rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """See :func:`ascend_ops_core.ops.norm.gemma_rms_norm`."""
    return (divided_by_rms(x.float(), eps) * (1 + weight.float())).to(x.dtype)


def add_rms_norm(
    x: torch.Tensor,
    residual: torch.Tensor,
    weight: torch.Tensor | None,
    bias: torch.Tensor | None,
    eps: float,
) -> tuple[torch.Tensor, torch.Tensor]:
    """See :func:`ascend_ops_core.ops.norm.add_rms_norm`."""
    total = (x.float() + residual.float()).to(x.dtype)
    if bias is None:
        return rms_norm(total, weight, eps), total
    return rms_norm_bias(total, weight, bias, eps), total


def layer_norm(
    x: torch.Tensor, weight: torch.Tensor | None, bias: torch.Tensor | None, eps: float
) -> torch.Tensor:
    """See :func:`ascend_ops_core.ops.norm.layer_norm`."""
    y = x.float() - x.float().mean(dim=-1, keepdim=True)
    y = divided_by_rms(y, eps)
    if weight is not None:
        y = y * weight.float()
    if bias is not None:
        y = y + bias.float()
    return y.to(x.dtype)


def divided_by_rms(x_f32: torch.Tensor, eps: float) -> torch.Tensor:
    """``x / sqrt(mean(x^2) + eps)`` over the last axis."""
    return x_f32 * torch.rsqrt(x_f32.square().mean(dim=-1, keepdim=True) + eps)
