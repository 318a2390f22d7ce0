"""What the experts computed."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from ascend_fused_moe.group_list import GroupList

__all__ = ["FusedExpertsResult"]


@dataclass(frozen=True)
class FusedExpertsResult:
    """The routed experts' output for the rows of a dispatch.

    Attributes:
        routed_out: ``[N, H]``, the weighted sum over each row's experts; with all-gather only over
            those of this rank.
        group_list: rows that each local expert had, for balancing.
    """

    routed_out: torch.Tensor
    group_list: GroupList
