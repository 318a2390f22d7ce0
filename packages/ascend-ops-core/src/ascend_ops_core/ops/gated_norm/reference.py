"""Definitions of the gated norms."""

from __future__ import annotations

import torch
from torch.nn import functional as F


def rms_norm_gated(
    x: torch.Tensor,
    gate: torch.Tensor | None,
    weight: torch.Tensor | None,
    bias: torch.Tensor | None,
    eps: float,
    group_size: int,
    norm_before_gate: bool,
    activation: str,
) -> torch.Tensor:
    """See :func:`ascend_ops_core.ops.gated_norm.rms_norm_gated`."""
    return _gated_norm(x, gate, weight, bias, eps, group_size, norm_before_gate, activation, False)


def layer_norm_gated(
    x: torch.Tensor,
    gate: torch.Tensor | None,
    weight: torch.Tensor | None,
    bias: torch.Tensor | None,
    eps: float,
    group_size: int,
    norm_before_gate: bool,
    activation: str,
) -> torch.Tensor:
    """See :func:`ascend_ops_core.ops.gated_norm.layer_norm_gated`."""
    return _gated_norm(x, gate, weight, bias, eps, group_size, norm_before_gate, activation, True)


def _gated_norm(
    x: torch.Tensor,
    gate: torch.Tensor | None,
    weight: torch.Tensor | None,
    bias: torch.Tensor | None,
    eps: float,
    group_size: int,
    norm_before_gate: bool,
    activation: str,
    centered: bool,
) -> torch.Tensor:
    y = x.float()
    if gate is not None:
        act = torch.sigmoid if activation == "sigmoid" else F.silu
        factor = act(gate.float())
    if gate is not None and not norm_before_gate:
        y = y * factor
    groups = y.unflatten(-1, (-1, group_size))
    if centered:
        groups = groups - groups.mean(dim=-1, keepdim=True)
    groups = groups * torch.rsqrt(groups.square().mean(dim=-1, keepdim=True) + eps)
    y = groups.flatten(-2)
    if weight is not None:
        y = y * weight.float()
    if bias is not None:
        y = y + bias.float()
    if gate is not None and norm_before_gate:
        y = y * factor
    return y.to(x.dtype)
