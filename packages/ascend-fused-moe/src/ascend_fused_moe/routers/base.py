"""What a layer asks of its router."""

from __future__ import annotations

from typing import Protocol

import torch

from ascend_fused_moe.pipeline import MoERouterInput

__all__ = ["AscendRouter"]


class AscendRouter(Protocol):
    """Chooses experts for rows.

    Attributes:
        num_experts: experts that it chooses from.
        top_k: experts of each row.
    """

    num_experts: int
    top_k: int

    def select_experts(self, given: MoERouterInput) -> tuple[torch.Tensor, torch.Tensor]:
        """Weights ``[N, k]`` float32 and logical expert ids ``[N, k]`` int64 of the rows."""
