"""Definition of the activations."""

from __future__ import annotations

import torch
from torch.nn import functional as F


def silu_and_mul(gate_up: torch.Tensor) -> torch.Tensor:
    """See :func:`ascend_ops_core.ops.activation.silu_and_mul`."""
    gate, up = gate_up.float().chunk(2, dim=-1)
    return (F.silu(gate) * up).to(gate_up.dtype)


def silu_and_mul_with_clamp(gate_up: torch.Tensor, limit: float | None) -> torch.Tensor:
    """See :func:`ascend_ops_core.ops.activation.silu_and_mul_with_clamp`."""
    gate, up = gate_up.chunk(2, dim=-1)
    if limit:
        gate = gate.clamp(max=limit)
        up = up.clamp(min=-limit, max=limit)
    return F.silu(gate) * up


def swiglu_oai_and_mul(
    gate_up: torch.Tensor, alpha: float, limit: float, bias: float, interleaved: bool
) -> torch.Tensor:
    """See :func:`ascend_ops_core.ops.activation.swiglu_oai_and_mul`."""
    wide = gate_up.float()
    gate, up = (wide[..., 0::2], wide[..., 1::2]) if interleaved else wide.chunk(2, dim=-1)
    gate, up = gate.clamp(max=limit), up.clamp(min=-limit, max=limit)
    return (gate * torch.sigmoid(alpha * gate) * (up + bias)).to(gate_up.dtype)


def swiglustep_and_mul(gate_up: torch.Tensor, limit: float) -> torch.Tensor:
    """See :func:`ascend_ops_core.ops.activation.swiglustep_and_mul`."""
    gate, up = gate_up.float().chunk(2, dim=-1)
    return (F.silu(gate).clamp(max=limit) * up.clamp(min=-limit, max=limit)).to(gate_up.dtype)


def situ_and_mul(gate_up: torch.Tensor, beta: float, linear_beta: float | None) -> torch.Tensor:
    """See :func:`ascend_ops_core.ops.activation.situ_and_mul`."""
    gate, up = gate_up.float().chunk(2, dim=-1)
    if linear_beta:
        up = linear_beta * torch.tanh(up / linear_beta)
    return (beta * torch.tanh(gate / beta) * torch.sigmoid(gate) * up).to(gate_up.dtype)


def quick_gelu(x: torch.Tensor) -> torch.Tensor:
    """See :func:`ascend_ops_core.ops.activation.quick_gelu`."""
    wide = x.float()
    return (wide * torch.sigmoid(1.702 * wide)).to(x.dtype)
