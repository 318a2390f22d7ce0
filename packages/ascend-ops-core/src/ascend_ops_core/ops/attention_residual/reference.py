"""Definition of attention residuals in torch."""

from __future__ import annotations

import torch


def attn_res(
    prefix: torch.Tensor,
    blocks: torch.Tensor,
    norm_weight: torch.Tensor,
    proj: torch.Tensor,
    eps: float,
) -> torch.Tensor:
    """See :func:`ascend_ops_core.ops.attention_residual.attn_res`."""
    sources = torch.cat((blocks, prefix.unsqueeze(0))).float()
    scores = (sources * (norm_weight.float() * proj.float())).sum(-1)
    scores = scores * torch.rsqrt(sources.square().mean(-1) + eps)
    return (scores.softmax(0).unsqueeze(-1) * sources).sum(0).to(prefix.dtype)


def add_attn_res(
    prefix: torch.Tensor,
    update: torch.Tensor,
    blocks: torch.Tensor,
    norm_weight: torch.Tensor,
    proj: torch.Tensor,
    eps: float,
) -> tuple[torch.Tensor, torch.Tensor]:
    """See :func:`ascend_ops_core.ops.attention_residual.add_attn_res`."""
    total = prefix + update
    return attn_res(total, blocks, norm_weight, proj, eps), total
