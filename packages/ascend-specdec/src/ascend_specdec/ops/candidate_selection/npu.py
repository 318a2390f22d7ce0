"""Limits of the choice among candidates on NPUs. torch_npu has no such operators."""

from __future__ import annotations

import torch
from ascend_ops_core.devices import DeviceFacts
from ascend_ops_core.support import Support, first_refusal

MOST_CANDIDATES = 64
"""Candidates of a place; the kernels go over their pairs one by one."""
MOST_RANK = 4096
"""Channels of a code book's row, which the kernel holds as a whole."""


def _few(width: int) -> tuple[bool, str]:
    return width <= MOST_CANDIDATES, f"{width} candidates, the kernel takes {MOST_CANDIDATES}"


def supports_selector_edges_triton(
    facts: DeviceFacts,
    unary: torch.Tensor,
    candidates: torch.Tensor,
    anchors: torch.Tensor,
    predecessors: torch.Tensor,
    successors: torch.Tensor,
    gates: torch.Tensor,
) -> Support:
    """Few candidates, and rows of code books that fit the unified buffer."""
    rank = predecessors.shape[1]
    return first_refusal(
        _few(unary.shape[2]),
        (rank <= MOST_RANK, f"rank {rank}, the kernel takes at most {MOST_RANK}"),
    )


def supports_selector_walk_triton(
    facts: DeviceFacts, edges: torch.Tensor, candidates: torch.Tensor
) -> Support:
    """Few candidates."""
    return first_refusal(_few(candidates.shape[2]))
