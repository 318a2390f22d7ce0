"""Definition of the products of MXFP8 values."""

from __future__ import annotations

import torch

from ascend_ops_core.ops.quantization.formats import e8m0_values

_BLOCK = 32


def mxfp8_grouped_linear(
    x: torch.Tensor,
    x_scale: torch.Tensor,
    weight: torch.Tensor,
    weight_scale: torch.Tensor,
    dtype: torch.dtype,
) -> torch.Tensor:
    """See :func:`ascend_ops_core.ops.mx_linear.mxfp8_grouped_linear`."""
    wide = torch.einsum("tgk,gnk->tgn", _values(x, x_scale), _values(weight, weight_scale))
    return wide.to(dtype)


def _values(q: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    blocks = q.float().unflatten(-1, (-1, _BLOCK))
    return (blocks * e8m0_values(scale).unsqueeze(-1)).flatten(-2)
