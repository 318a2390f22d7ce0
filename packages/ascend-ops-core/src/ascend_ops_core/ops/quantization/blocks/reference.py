"""Definitions of the quantisation of blocks."""

from __future__ import annotations

import torch
from torch.nn import functional as F

from ascend_ops_core.ops.quantization.formats import (
    E8M0_BIAS,
    E8M0_NAN,
    LARGEST,
    e8m0_values,
    largest_magnitude,
    narrowed,
    scaled,
)

_COLUMNS = 128


def block_quantize(
    x: torch.Tensor,
    dtype: torch.dtype,
    rows: int,
    scale_dtype: torch.dtype,
    min_magnitude: float,
) -> tuple[torch.Tensor, torch.Tensor]:
    """See :func:`ascend_ops_core.ops.quantization.block_quantize`."""
    values = x.float()
    flat = values.reshape(-1, x.shape[-1])
    padded = F.pad(flat, (0, -flat.shape[1] % _COLUMNS, 0, -flat.shape[0] % rows))
    blocks = padded.unflatten(1, (-1, _COLUMNS)).unflatten(0, (-1, rows))
    largest = largest_magnitude(blocks, (1, 3)).clamp(min=min_magnitude)
    scale = largest / LARGEST[dtype]
    if scale_dtype == torch.uint8:
        scale = _power_of_two_above(scale)
        factor = e8m0_values(scale)
        factor = torch.where(factor.isnan(), torch.inf, factor)
    else:
        factor = scale
    factor = _spread(factor, rows, flat.shape)
    # 2^-127 is no reason to take a block for zeros.
    divided = flat / factor if scale_dtype == torch.uint8 else scaled(flat, factor)
    q = narrowed(torch.where(divided.isnan(), 0.0, divided), dtype)
    return q.view(x.shape), scale.view(*(x.shape[:-1] if rows == 1 else (-1,)), scale.shape[1])


def block_dequantize(
    q: torch.Tensor, scale: torch.Tensor, rows: int, dtype: torch.dtype
) -> torch.Tensor:
    """See :func:`ascend_ops_core.ops.quantization.block_dequantize`."""
    factor = e8m0_values(scale) if scale.dtype == torch.uint8 else scale
    flat = q.float().reshape(-1, q.shape[-1])
    factor = _spread(factor.reshape(-1, scale.shape[-1]), rows, flat.shape)
    return (flat * factor).to(dtype).view(q.shape)


def _spread(scale: torch.Tensor, rows: int, shape: torch.Size) -> torch.Tensor:
    """One factor for each element."""
    spread = scale.repeat_interleave(rows, 0).repeat_interleave(_COLUMNS, 1)
    return spread[: shape[0], : shape[1]]


def _power_of_two_above(scale: torch.Tensor) -> torch.Tensor:
    """Codes of the smallest powers of two that are not below ``scale``."""
    fraction, exponent = torch.frexp(scale)
    exponent = exponent - (fraction == 0.5).to(exponent.dtype)
    code = torch.where(scale == 0, 0, exponent + E8M0_BIAS).clamp(min=0)
    return torch.where(scale.isinf(), E8M0_NAN, code).to(torch.uint8)
