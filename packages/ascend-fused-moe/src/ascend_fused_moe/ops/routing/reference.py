"""Definition of the routers."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch.nn import functional as F

SCORING: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "sqrtsoftplus": lambda logits: F.softplus(logits).sqrt(),
    "sigmoid": torch.sigmoid,
    "softmax": lambda logits: logits.softmax(dim=-1),
}

# Keeps an all-zero row of weights finite, as transformers does.
_FLOOR = 1e-20


def topk_routing(
    logits: torch.Tensor,
    bias: torch.Tensor | None,
    top_k: int,
    scoring: str,
    renormalize: bool,
    scale: float,
) -> tuple[torch.Tensor, torch.Tensor]:
    """See :func:`ascend_fused_moe.ops.routing.topk_routing`."""
    scores = SCORING[scoring](logits.float())
    ranked = scores if bias is None else scores + bias.float()
    lowest = torch.finfo(torch.float32).min
    ranked = ranked.nan_to_num(nan=lowest, neginf=lowest, posinf=float("inf"))
    # Stable, so that of equal experts the lower id comes first.
    ids = ranked.sort(dim=-1, descending=True, stable=True).indices[:, :top_k].contiguous()
    return _weights(scores, ids, renormalize, scale), ids


def hash_routing(
    logits: torch.Tensor,
    token_ids: torch.Tensor,
    table: torch.Tensor,
    scoring: str,
    renormalize: bool,
    scale: float,
) -> tuple[torch.Tensor, torch.Tensor]:
    """See :func:`ascend_fused_moe.ops.routing.hash_routing`."""
    ids = table[token_ids].long()
    return _weights(SCORING[scoring](logits.float()), ids, renormalize, scale), ids


def _weights(
    scores: torch.Tensor, ids: torch.Tensor, renormalize: bool, scale: float
) -> torch.Tensor:
    weights = scores.gather(1, ids)
    if renormalize:
        weights = weights / (weights.sum(dim=-1, keepdim=True) + _FLOOR)
    return weights * scale
