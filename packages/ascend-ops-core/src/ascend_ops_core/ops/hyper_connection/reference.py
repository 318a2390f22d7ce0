"""Definition of the hyper-connections in torch."""

from __future__ import annotations

import torch
from torch.nn import functional as F

from ascend_ops_core.ops.norm import reference as norm


def sinkhorn(logits: torch.Tensor, iters: int, eps: float) -> torch.Tensor:
    """See :func:`ascend_ops_core.ops.hyper_connection.sinkhorn`."""
    comb = logits.softmax(dim=-1) + eps
    comb = comb / (comb.sum(dim=-2, keepdim=True) + eps)
    for _ in range(iters - 1):
        comb = comb / (comb.sum(dim=-1, keepdim=True) + eps)
        comb = comb / (comb.sum(dim=-2, keepdim=True) + eps)
    return comb


def hc_pre(
    streams: torch.Tensor,
    fn: torch.Tensor,
    scale: torch.Tensor,
    base: torch.Tensor,
    sinkhorn_iters: int,
    hc_eps: float,
    norm_eps: float,
    norm_weight: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """See :func:`ascend_ops_core.ops.hyper_connection.hc_pre`."""
    n = streams.shape[1]
    mixes = F.linear(norm.rms_norm(streams.flatten(1).float(), None, norm_eps), fn)
    pre_mix, post_mix, comb_mix = mixes.split([n, n, n * n], dim=-1)
    pre_base, post_base, comb_base = base.split([n, n, n * n])
    pre = torch.sigmoid(pre_mix * scale[0] + pre_base) + hc_eps
    post = 2 * torch.sigmoid(post_mix * scale[1] + post_base)
    logits = (comb_mix * scale[2] + comb_base).unflatten(-1, (n, n))
    comb = sinkhorn(logits, sinkhorn_iters, hc_eps)
    collapsed = (pre.unsqueeze(-1) * streams).sum(dim=1).to(streams.dtype)
    return norm.rms_norm(collapsed, norm_weight, norm_eps), post, comb


def hc_post(
    output: torch.Tensor, streams: torch.Tensor, post: torch.Tensor, comb: torch.Tensor
) -> torch.Tensor:
    """See :func:`ascend_ops_core.ops.hyper_connection.hc_post`."""
    spread = post.unsqueeze(-1) * output.float().unsqueeze(-2)
    mixed = comb.transpose(-1, -2) @ streams.float()
    return (spread + mixed).to(streams.dtype)


def hc_head(
    streams: torch.Tensor,
    fn: torch.Tensor,
    scale: torch.Tensor,
    base: torch.Tensor,
    hc_eps: float,
    norm_eps: float,
) -> torch.Tensor:
    """See :func:`ascend_ops_core.ops.hyper_connection.hc_head`."""
    mixes = F.linear(norm.rms_norm(streams.flatten(1).float(), None, norm_eps), fn)
    weights = torch.sigmoid(mixes * scale + base) + hc_eps
    return (weights.unsqueeze(-1) * streams).sum(dim=1).to(streams.dtype)
