"""Latent attention by torch_npu's operator over latents, and the limits of all implementations.

Not run on hardware.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from ascend_ops_core.devices import DeviceFacts
from ascend_ops_core.support import Support

from ascend_attention.ops.mla_attention import npu
from ascend_attention.ops.mla_attention.npu import (
    supports_mla_attention,
    supports_mla_attention_triton,
)


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
    attended, _ = npu.mla_attention(
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


def supports_mla_forward(
    facts: DeviceFacts,
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
) -> Support:
    """What the operator over latents takes."""
    return supports_mla_attention(
        facts, _latent_query(q_nope, kv_b), q_rope, latents, ropes, block_table, request, position,
        scale, query_ends, seq_lens,
    )  # fmt: skip


def supports_mla_forward_triton(
    facts: DeviceFacts,
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
) -> Support:
    """What the kernel over latents takes."""
    return supports_mla_attention_triton(
        facts, _latent_query(q_nope, kv_b), q_rope, latents, ropes, block_table, request, position,
        scale, query_ends, seq_lens,
    )  # fmt: skip


def _latent_query(q_nope: torch.Tensor, kv_b: torch.Tensor) -> torch.Tensor:
    shape = (*q_nope.shape[:2], kv_b.shape[2])
    return torch.empty(shape, dtype=q_nope.dtype, device="meta")
