"""Definition of the sparse attention for some tokens."""

from __future__ import annotations

import torch

from ascend_attention.ops.sparse_attention.source import RowSource


def sparse_attention(
    query: torch.Tensor, sources: list[RowSource], part: slice, sinks: torch.Tensor, scale: float
) -> torch.Tensor:
    """Attention of the tokens ``part``, whose queries are ``query [t, H, D]``."""
    gathered = [source.rows(part) for source in sources if source.width]
    rows = torch.cat([r for r, _ in gathered], dim=1) if len(gathered) > 1 else gathered[0][0]
    logits = torch.bmm(query.float(), rows.transpose(1, 2)).mul_(scale)
    start = 0
    for r, valid in gathered:
        if valid is not None:
            logits[:, :, start : start + r.shape[1]].masked_fill_(
                ~valid.unsqueeze(1), float("-inf")
            )
        start += r.shape[1]
    top = torch.maximum(logits.amax(dim=-1), sinks).unsqueeze(-1)
    weights = logits.sub_(top).exp_()
    total = weights.sum(dim=-1, keepdim=True) + (sinks.unsqueeze(-1) - top).exp()
    return torch.bmm(weights, rows).div_(total).to(query.dtype)
