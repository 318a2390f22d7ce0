"""The stacked weights of a layer's routed experts."""

from __future__ import annotations

import torch
from torch import nn

from ascend_fused_moe.ops.experts import fused_experts


class RoutedExperts(nn.Module):
    """Experts of one layer, or one tensor-parallel slice of them.

    Args:
        num_experts: experts held here.
        hidden_size: ``H``.
        intermediate_size: ``I`` of this slice.
        dtype: dtype of the weights.
        swiglu_limit: bound of the gated activation, or None.

    Attributes:
        w13: ``[E, 2 * I, H]``, gate rows before up rows.
        w2: ``[E, H, I]``.
    """

    def __init__(
        self,
        num_experts: int,
        hidden_size: int,
        intermediate_size: int,
        dtype: torch.dtype,
        swiglu_limit: float | None,
    ) -> None:
        super().__init__()
        self.swiglu_limit = swiglu_limit
        self.w13 = nn.Parameter(
            torch.empty(num_experts, 2 * intermediate_size, hidden_size, dtype=dtype),
            requires_grad=False,
        )
        self.w2 = nn.Parameter(
            torch.empty(num_experts, hidden_size, intermediate_size, dtype=dtype),
            requires_grad=False,
        )

    def forward(
        self,
        x: torch.Tensor,
        weights: torch.Tensor,
        ids: torch.Tensor,
        shared: tuple[torch.Tensor, torch.Tensor] | None = None,
    ) -> torch.Tensor:
        """``[T, H]`` from ``x [T, H]``, ``weights [T, k]`` and ``ids [T, k]``.

        ``shared`` is a shared expert's ``[2 * S, H]`` and ``[H, S]``, added to the result.
        """
        return fused_experts(x, self.w13, self.w2, weights, ids, self.swiglu_limit, shared)
