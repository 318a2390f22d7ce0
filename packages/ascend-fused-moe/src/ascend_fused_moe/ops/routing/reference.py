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
    ids = highest(finite_below(ranked), top_k)
    return weights_of(scores, ids, renormalize, scale), ids


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
    return weights_of(SCORING[scoring](logits.float()), ids, renormalize, scale), ids


def finite_below(ranked: torch.Tensor) -> torch.Tensor:
    """NaN and minus infinity as the lowest float32, so that minus infinity can mean no choice."""
    lowest = torch.finfo(torch.float32).min
    return ranked.nan_to_num(nan=lowest, neginf=lowest, posinf=float("inf"))


def highest(ranked: torch.Tensor, count: int) -> torch.Tensor:
    """Columns of the highest values of each row; of equal ones the lower comes first."""
    # A stable sort, since topk does not say which of equal values it takes.
    return ranked.sort(dim=-1, descending=True, stable=True).indices[:, :count].contiguous()


def weights_of(
    scores: torch.Tensor, ids: torch.Tensor, renormalize: bool, scale: float
) -> torch.Tensor:
    """The scores of the chosen experts, renormalised if asked, times the scale."""
    weights = scores.gather(1, ids)
    if renormalize:
        weights = weights / (weights.sum(dim=-1, keepdim=True) + _FLOOR)
    return weights * scale
