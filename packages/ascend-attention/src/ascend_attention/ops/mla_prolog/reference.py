"""Definition of the prologue of latent attention as one operator."""

from __future__ import annotations

import torch
from ascend_ops_core.ops.norm.reference import rms_norm
from ascend_ops_core.ops.rotary.reference import apply_rotary

from ascend_attention.ops.mla_cache.reference import kv_rmsnorm_rope_cache


def mla_prolog(
    hidden: torch.Tensor,
    down_q: torch.Tensor,
    up_q: torch.Tensor,
    up_k: torch.Tensor,
    down_kv: torch.Tensor,
    q_norm: torch.Tensor,
    kv_norm: torch.Tensor,
    eps: float,
    cos: torch.Tensor,
    sin: torch.Tensor,
    latents: torch.Tensor,
    ropes: torch.Tensor,
    block: torch.Tensor,
    offset: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """See :func:`ascend_attention.ops.mla_prolog.mla_prolog`."""
    heads, nope, _ = up_k.shape
    q_input = rms_norm(hidden @ down_q, q_norm.float(), eps)
    query = (q_input @ up_q).unflatten(-1, (heads, -1))
    q_nope, q_rope = query.split([nope, 2 * cos.shape[1]], dim=-1)
    turned = apply_rotary(q_rope, cos, sin, True, False, False)
    q_rope = turned.unflatten(-1, (-1, 2)).mT.flatten(-2)
    q_latent = torch.bmm(q_nope.transpose(0, 1), up_k).transpose(0, 1).contiguous()
    kv_rmsnorm_rope_cache(
        hidden @ down_kv, kv_norm.float(), eps, cos, sin, latents, ropes, block, offset, True, True
    )
    return q_latent, q_rope, q_input
