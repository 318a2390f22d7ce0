"""Definition of the matrix products."""

from __future__ import annotations

import torch
from torch.nn import functional as F


def linear(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """See :func:`ascend_ops_core.ops.linear.linear`."""
    return F.linear(x, weight)


def grouped_linear(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """See :func:`ascend_ops_core.ops.linear.grouped_linear`."""
    return torch.bmm(x.transpose(0, 1), weight.transpose(1, 2)).transpose(0, 1)


def unquantized_gemm(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None
) -> torch.Tensor:
    """See :func:`ascend_ops_core.ops.linear.unquantized_gemm`."""
    return F.linear(x, weight, bias)


def to_nz(weight: torch.Tensor) -> torch.Tensor:
    """See :func:`ascend_ops_core.ops.linear.to_nz`."""
    return weight.clone()
