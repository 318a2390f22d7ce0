"""The learned parameters of one attention residual."""

from __future__ import annotations

import torch
from torch import nn

from ascend_ops_core.ops.attention_residual import add_attn_res, attn_res


class AttentionResidual(nn.Module):
    """One mixture of the residual stream's sources.

    Args:
        hidden_size: ``H``.
        eps: see :func:`ascend_ops_core.ops.attention_residual.attn_res`.
        dtype: of the parameters.

    Attributes:
        norm: ``[H]``, ``norm_weight`` there.
        proj: ``[H]``.
    """

    def __init__(self, hidden_size: int, eps: float, dtype: torch.dtype) -> None:
        super().__init__()
        self.eps = eps
        self.norm = _vector(hidden_size, dtype)
        self.proj = _vector(hidden_size, dtype)

    def forward(self, prefix: torch.Tensor, blocks: torch.Tensor) -> torch.Tensor:
        """The mixture ``[T, H]`` of ``blocks [n, T, H]`` and the running sum ``prefix [T, H]``."""
        return attn_res(prefix, blocks, self.norm, self.proj, self.eps)

    def add(
        self, prefix: torch.Tensor, update: torch.Tensor, blocks: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """The same after ``update [T, H]`` is added, and the new running sum."""
        return add_attn_res(prefix, update, blocks, self.norm, self.proj, self.eps)


def _vector(size: int, dtype: torch.dtype) -> nn.Parameter:
    return nn.Parameter(torch.empty(size, dtype=dtype), requires_grad=False)
