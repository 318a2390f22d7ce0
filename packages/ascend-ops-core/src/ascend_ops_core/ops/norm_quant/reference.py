"""Definitions of the norms that quantise their result."""

from __future__ import annotations

import torch

from ascend_ops_core.ops.norm.reference import divided_by_rms

_LARGEST = 127


def rms_norm_dynamic_quant(
    x: torch.Tensor,
    weight: torch.Tensor | None,
    bias: torch.Tensor | None,
    smooth_scale: torch.Tensor | None,
    eps: float,
) -> tuple[torch.Tensor, torch.Tensor]:
    """See :func:`ascend_ops_core.ops.norm_quant.rms_norm_dynamic_quant`."""
    y = divided_by_rms(x.float(), eps)
    if weight is not None:
        y = y * weight.float()
    if bias is not None:
        y = y + bias.float()
    if smooth_scale is not None:
        y = y * smooth_scale.float()
    scale = y.abs().amax(dim=-1) / _LARGEST
    divisor = torch.where(scale > 0, scale, 1.0)
    return torch.round(y / divisor.unsqueeze(-1)).to(torch.int8), scale


def add_rms_norm_dynamic_quant(
    x: torch.Tensor,
    residual: torch.Tensor,
    weight: torch.Tensor | None,
    bias: torch.Tensor | None,
    smooth_scale: torch.Tensor | None,
    eps: float,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """See :func:`ascend_ops_core.ops.norm_quant.add_rms_norm_dynamic_quant`."""
    total = (x.float() + residual.float()).to(x.dtype)
    values, scale = rms_norm_dynamic_quant(total, weight, bias, smooth_scale, eps)
    return values, scale, total
