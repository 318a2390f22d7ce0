"""The linear layer that scores the experts."""

from __future__ import annotations

import torch
from ascend_ops_core.ops.linear import linear
from torch import nn

__all__ = ["AscendGateLinear"]


class AscendGateLinear(nn.Module):
    """Router logits, replicated on every rank.

    Args:
        hidden_size: ``H``.
        num_experts: ``E``.
        dtype: of the weight; float32 where a checkpoint asks for exact scores.
        out_dtype: of the logits; None for that of the weight.

    Attributes:
        weight: ``[E, H]``.
    """

    def __init__(
        self,
        hidden_size: int,
        num_experts: int,
        dtype: torch.dtype,
        out_dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.out_dtype = out_dtype
        weight = torch.empty(num_experts, hidden_size, dtype=dtype)
        self.weight = nn.Parameter(weight, requires_grad=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """``[T, E]`` from ``x [T, H]``, which is converted to the weight's dtype."""
        logits = linear(x.to(self.weight.dtype), self.weight)
        return logits if self.out_dtype is None else logits.to(self.out_dtype)
