"""Definitions of the quantisation of rows."""

from __future__ import annotations

import torch

from ascend_ops_core.ops.quantization.formats import (
    LARGEST,
    largest_magnitude,
    narrowed,
    scaled,
)


def dynamic_quantize(
    x: torch.Tensor, smooth: torch.Tensor | None, dtype: torch.dtype
) -> tuple[torch.Tensor, torch.Tensor]:
    """See :func:`ascend_ops_core.ops.quantization.dynamic_quantize`."""
    values = x.float()
    if smooth is not None:
        values = values * smooth.float()
    scale = largest_magnitude(values, -1) / LARGEST[dtype]
    return narrowed(scaled(values, scale.unsqueeze(-1)), dtype), scale


def static_quantize(
    x: torch.Tensor, scale: torch.Tensor, offset: torch.Tensor | None, dtype: torch.dtype
) -> torch.Tensor:
    """See :func:`ascend_ops_core.ops.quantization.static_quantize`."""
    values = x.float() / scale.float()
    if offset is not None:
        values = values + offset.float()
    return narrowed(values, dtype)
