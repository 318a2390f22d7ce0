"""RMS norm that leaves int8 rows, each with its own scale, for a quantised product behind it."""

from __future__ import annotations

import torch

from ascend_ops_core.ops.norm import check_residual, check_vectors
from ascend_ops_core.registry import declare

__all__ = ["add_rms_norm_dynamic_quant", "rms_norm_dynamic_quant"]


def rms_norm_dynamic_quant(
    x: torch.Tensor,
    weight: torch.Tensor | None,
    bias: torch.Tensor | None = None,
    smooth_scale: torch.Tensor | None = None,
    *,
    eps: float,
) -> tuple[torch.Tensor, torch.Tensor]:
    """RMS norm, quantised symmetrically by row.

    Args:
        x: ``[..., D]``, float32, bfloat16 or float16; may have no rows.
        weight: ``[D]`` of any float dtype, or None.
        bias: ``[D]`` of any float dtype, added to the norm, or None.
        smooth_scale: ``[D]`` of any float dtype, factor of the norm before it is quantised
            (SmoothQuant), or None.
        eps: added to the mean square.

    Returns:
        ``[..., D]`` int8, and the scales ``[...]`` float32: the largest magnitude of a row / 127.
        ``norm = int8 * scale``; a row of zeros has the scale 0. The norm is not rounded before it
        is quantised; halves go to the even integer.

    Raises:
        InvalidInputError: weight, bias or smooth_scale is not ``[D]``.
    """
    check_vectors(x, weight=weight, bias=bias, smooth_scale=smooth_scale)
    values, scale = _RMS_NORM_DYNAMIC_QUANT(x, weight, bias, smooth_scale, eps)
    return values, scale


def add_rms_norm_dynamic_quant(
    x: torch.Tensor,
    residual: torch.Tensor,
    weight: torch.Tensor | None,
    bias: torch.Tensor | None = None,
    smooth_scale: torch.Tensor | None = None,
    *,
    eps: float,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Add to the residual stream, then :func:`rms_norm_dynamic_quant` of the sum.

    Args:
        x: ``[..., D]``, float32, bfloat16 or float16; may have no rows.
        residual: as ``x``.
        weight: as in :func:`rms_norm_dynamic_quant`, like the arguments that follow.
        bias: see there.
        smooth_scale: see there.
        eps: see there.

    Returns:
        int8 ``[..., D]``, scales ``[...]`` float32, and the sum, which is the new residual,
        ``[..., D]`` in ``x.dtype``. The sum is rounded to that dtype before it is normed.

    Raises:
        InvalidInputError: another shape or dtype of the residual; a vector that is not ``[D]``.
    """
    check_residual(x, residual)
    check_vectors(x, weight=weight, bias=bias, smooth_scale=smooth_scale)
    values, scale, total = _ADD_RMS_NORM_DYNAMIC_QUANT(x, residual, weight, bias, smooth_scale, eps)
    return values, scale, total


def _quantised(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    return (
        torch.empty(x.shape, dtype=torch.int8, device=x.device),
        torch.empty(x.shape[:-1], dtype=torch.float32, device=x.device),
    )


_RMS_NORM_DYNAMIC_QUANT = declare(
    __name__,
    "rms_norm_dynamic_quant(Tensor x, Tensor? weight, Tensor? bias, Tensor? smooth_scale,"
    " float eps) -> (Tensor, Tensor)",
    npu=("triton",),
    fake=lambda x, *rest: _quantised(x),
)

_ADD_RMS_NORM_DYNAMIC_QUANT = declare(
    __name__,
    "add_rms_norm_dynamic_quant(Tensor x, Tensor residual, Tensor? weight, Tensor? bias,"
    " Tensor? smooth_scale, float eps) -> (Tensor, Tensor, Tensor)",
    npu=("torch_npu", "triton"),
    fake=lambda x, *rest: (
        *_quantised(x),
        torch.empty(x.shape, dtype=x.dtype, device=x.device),
    ),
)
