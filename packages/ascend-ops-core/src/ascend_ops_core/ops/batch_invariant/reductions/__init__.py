"""Batch-invariant mean, norm and softmax."""

from __future__ import annotations

import torch

from ascend_ops_core.errors import InvalidInputError
from ascend_ops_core.registry import declare

__all__ = ["mean_batch_invariant", "rms_norm_batch_invariant", "softmax_batch_invariant"]

_FLOATS = (torch.float32, torch.bfloat16, torch.float16)


def mean_batch_invariant(x: torch.Tensor, dim: int, *, keepdim: bool = False) -> torch.Tensor:
    """Mean over one axis.

    Args:
        x: any shape, float32, bfloat16 or float16; the axis itself is not empty.
        dim: the axis.
        keepdim: keep the axis with one element.

    Returns:
        ``x.dtype``; computed in float32 and rounded once.

    Raises:
        InvalidInputError: another dtype, no such axis, or an axis without elements.
    """
    _check_axis("mean", x, dim)
    result: torch.Tensor = _MEAN(x, dim, keepdim)
    return result


def rms_norm_batch_invariant(
    x: torch.Tensor, weight: torch.Tensor | None, eps: float
) -> torch.Tensor:
    """``x / sqrt(mean(x^2) + eps) * weight`` over the last axis (Zhang and Sennrich, 2019).

    Args:
        x: ``[..., D]``, float32, bfloat16 or float16.
        weight: ``[D]`` of any float dtype, or None.
        eps: added to the mean square.

    Returns:
        ``[..., D]`` in ``x.dtype``; computed in float32 and rounded once.

    Raises:
        InvalidInputError: another dtype, an empty last axis, or a weight of another width.
    """
    _check_axis("rms_norm", x, -1)
    if weight is not None and weight.shape != (x.shape[-1],):
        raise InvalidInputError(
            f"weight of shape {tuple(weight.shape)}", f"it is ({x.shape[-1]},)", "Check the weight."
        )
    result: torch.Tensor = _RMS_NORM(x, weight, eps)
    return result


def softmax_batch_invariant(x: torch.Tensor, dim: int) -> torch.Tensor:
    """``exp(x - max) / sum(exp(x - max))`` over one axis.

    Args:
        x: any shape, float32, bfloat16 or float16; a row of only ``-inf`` gives NaN.
        dim: the axis, not empty.

    Returns:
        ``x.dtype``; computed in float32 and rounded once.

    Raises:
        InvalidInputError: another dtype, no such axis, or an axis without elements.
    """
    _check_axis("softmax", x, dim)
    result: torch.Tensor = _SOFTMAX(x, dim)
    return result


def _check_axis(name: str, x: torch.Tensor, dim: int) -> None:
    if x.dtype not in _FLOATS:
        raise InvalidInputError(
            f"{name} of {x.dtype}", "x is float32, bfloat16 or float16", "Convert it."
        )
    if not -x.dim() <= dim < x.dim():
        raise InvalidInputError(
            f"dim={dim} of {name}", f"x has {x.dim()} axes", "Name one of them."
        )
    if x.shape[dim] == 0:
        raise InvalidInputError(
            f"{name} over an axis of 0 elements", "it has at least 1", "Skip the call."
        )


def _empty(x: torch.Tensor, *shape: int) -> torch.Tensor:
    return torch.empty(shape, dtype=x.dtype, device=x.device)


def _mean_fake(x: torch.Tensor, dim: int, keepdim: bool) -> torch.Tensor:
    dim %= x.dim()
    return _empty(x, *x.shape[:dim], *([1] if keepdim else []), *x.shape[dim + 1 :])


_MEAN = declare(
    __name__,
    "mean_batch_invariant(Tensor x, int dim, bool keepdim) -> Tensor",
    npu=("triton",),
    fake=_mean_fake,
)
_RMS_NORM = declare(
    __name__,
    "rms_norm_batch_invariant(Tensor x, Tensor? weight, float eps) -> Tensor",
    npu=("triton",),
    fake=lambda x, weight, eps: _empty(x, *x.shape),
)
_SOFTMAX = declare(
    __name__,
    "softmax_batch_invariant(Tensor x, int dim) -> Tensor",
    npu=("triton",),
    fake=lambda x, dim: _empty(x, *x.shape),
)
