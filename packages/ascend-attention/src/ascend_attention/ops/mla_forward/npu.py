"""Limits of latent attention from queries to values on NPUs. Not run on hardware."""

from __future__ import annotations

import torch
from ascend_ops_core.devices import DeviceFacts
from ascend_ops_core.support import Support

from ascend_attention.ops.mla_attention.npu import supports_mla_attention_triton


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
) -> Support:
    """What the kernel over latents takes."""
    shape = (*q_nope.shape[:2], kv_b.shape[2])
    q_latent = torch.empty(shape, dtype=q_nope.dtype, device="meta")
    return supports_mla_attention_triton(
        facts, q_latent, q_rope, latents, ropes, block_table, request, position, scale
    )
