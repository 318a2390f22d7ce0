"""Definition of the router with groups."""

from __future__ import annotations

import torch

from ascend_fused_moe.ops.routing.reference import SCORING, finite_below, highest, weights_of


def grouped_topk_routing(
    logits: torch.Tensor,
    bias: torch.Tensor | None,
    top_k: int,
    groups: int,
    top_groups: int,
    scoring: str,
    group_score: str,
    renormalize: bool,
    scale: float,
) -> tuple[torch.Tensor, torch.Tensor]:
    """See :func:`ascend_fused_moe.ops.grouped_routing.grouped_topk_routing`."""
    scores = SCORING[scoring](logits.float())
    ranked = finite_below(scores if bias is None else scores + bias.float())
    by_group = ranked.view(-1, groups, logits.shape[1] // groups)
    if group_score == "top2":
        of_groups = by_group.topk(2, dim=-1).values.sum(dim=-1)
    else:
        of_groups = by_group.amax(dim=-1)
    # Two of the lowest float32 sum to minus infinity.
    chosen = highest(finite_below(of_groups), top_groups)
    allowed = torch.zeros_like(of_groups, dtype=torch.bool).scatter_(1, chosen, True)
    within = by_group.masked_fill(~allowed.unsqueeze(-1), float("-inf"))
    ids = highest(within.view(ranked.shape), top_k)
    return weights_of(scores, ids, renormalize, scale), ids
