"""Definition of the prologue and the epilogue, of the operators that they consist of."""

from __future__ import annotations

import torch
from ascend_ops_core.ops.linear import grouped_linear, linear
from ascend_ops_core.ops.rotary import apply_rotary

from ascend_attention.ops.mla import prologue


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
    latent_kv = linear(hidden, wqa_wkv)
    latent = prologue.norm_latent(latent_kv, q_norm, eps)
    query = prologue.finish_query(linear(latent, wq_b), kv_norm.shape[0], eps, cos, sin)
    return latent, query, prologue.finish_kv(latent_kv, kv_norm, eps, cos, sin)


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
