"""Definitions of the choice among candidates."""

from __future__ import annotations

import torch


def selector_edges(
    unary: torch.Tensor,
    candidates: torch.Tensor,
    anchors: torch.Tensor,
    predecessors: torch.Tensor,
    successors: torch.Tensor,
    gates: torch.Tensor,
) -> torch.Tensor:
    """See :func:`ascend_specdec.ops.candidate_selection.selector_edges`."""
    first = anchors.view(-1, 1, 1).expand_as(candidates[:, :1])
    before = torch.cat([first, candidates[:, :-1]], dim=1)
    sources = predecessors[before].float() * gates.float().unsqueeze(2)
    return unary.unsqueeze(2) + sources @ successors[candidates].float().transpose(2, 3)


def selector_walk(edges: torch.Tensor, candidates: torch.Tensor) -> torch.Tensor:
    """See :func:`ascend_specdec.ops.candidate_selection.selector_walk`."""
    batch, places, _width = candidates.shape
    edges = torch.where(edges.isnan(), float("-inf"), edges)
    best = edges.amax(dim=3, keepdim=True)
    # The lowest index of the largest value, which ``argmax`` does not promise.
    following = (edges == best).int().argmax(dim=3)
    at = torch.zeros(batch, 1, dtype=torch.int64, device=edges.device)
    walked = []
    for place in range(places):
        at = following[:, place].gather(1, at)
        walked.append(candidates[:, place].gather(1, at))
    return torch.cat(walked, dim=1).int()
