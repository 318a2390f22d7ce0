"""Definition of the prologue and the epilogue, of the operators that they consist of."""

from __future__ import annotations

import torch
from ascend_ops_core.ops.linear import grouped_linear, linear
from ascend_ops_core.ops.norm import rms_norm
from ascend_ops_core.ops.rotary import apply_rotary, rms_norm_rotary


def mla_prologue(
    hidden: torch.Tensor,
    wqa_wkv: torch.Tensor,
    wq_b: torch.Tensor,
    q_norm: torch.Tensor,
    kv_norm: torch.Tensor,
    eps: float,
    cos: torch.Tensor,
    sin: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """See :func:`ascend_attention.ops.mla.mla_prologue`."""
    width = kv_norm.shape[0]
    latent, kv = linear(hidden, wqa_wkv).split([q_norm.shape[0], width], dim=-1)
    latent = rms_norm(latent.contiguous(), q_norm, eps)
    query = linear(latent, wq_b).unflatten(-1, (wq_b.shape[0] // width, width))
    query = rms_norm_rotary(query, None, eps, cos, sin)
    kv = rms_norm_rotary(kv.contiguous().unsqueeze(1), kv_norm, eps, cos, sin)
    return latent, query, kv.squeeze(1)


def mla_epilogue(
    attended: torch.Tensor,
    wo_a: torch.Tensor,
    wo_b: torch.Tensor,
    cos: torch.Tensor,
    sin: torch.Tensor,
) -> torch.Tensor:
    """See :func:`ascend_attention.ops.mla.mla_epilogue`."""
    plain = apply_rotary(attended, cos, sin, at_end=True, inverse=True)
    latent = grouped_linear(plain.flatten(1).unflatten(-1, wo_a.shape[::2]), wo_a)
    return linear(latent.flatten(1), wo_b)
