"""Definition of the products of int8."""

from __future__ import annotations

import torch


def int8_linear(
    x: torch.Tensor,
    x_scale: torch.Tensor,
    weight: torch.Tensor,
    weight_scale: torch.Tensor,
    dtype: torch.dtype,
) -> torch.Tensor:
    """See :func:`ascend_ops_core.ops.int8_linear.int8_linear`."""
    # float64 holds the sums of up to 2^39 products of int8 exactly.
    sums = x.double() @ weight.double().T
    return (sums * weight_scale.double() * x_scale.double()[:, None]).float().to(dtype)
