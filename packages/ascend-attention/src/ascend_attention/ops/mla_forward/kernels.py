"""Latent attention with the Triton kernel, in the absorbed order for any number of tokens."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from ascend_attention.ops.mla_attention import kernels


def mla_forward(
    q_nope: torch.Tensor,
    q_rope: torch.Tensor,
    latents: torch.Tensor,
    ropes: torch.Tensor,
    kv_b: torch.Tensor,
    block_table: torch.Tensor,
    request: torch.Tensor,
    position: torch.Tensor,
    scale: float,
    query_ends: Sequence[int],
    seq_lens: Sequence[int],
) -> torch.Tensor:
    """See :func:`ascend_attention.ops.mla_forward.mla_forward`."""
    nope = q_nope.shape[2]
    q_latent = torch.bmm(q_nope.transpose(0, 1), kv_b[:, :nope]).transpose(0, 1)
    attended, _ = kernels.mla_attention(
        q_latent,
        q_rope,
        latents,
        ropes,
        block_table,
        request,
        position,
        scale,
        query_ends,
        seq_lens,
    )
    return torch.bmm(attended.transpose(0, 1), kv_b[:, nope:].mT).transpose(0, 1)
