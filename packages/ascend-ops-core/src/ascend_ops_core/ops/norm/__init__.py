"""RMS norms (Zhang and Sennrich, 2019) and LayerNorm (Ba et al., 2016), accumulated in float32."""

from __future__ import annotations

import torch

from ascend_ops_core.cpu_kernels import CpuKernels
from ascend_ops_core.errors import InvalidInputError
from ascend_ops_core.ops.norm import reference
from ascend_ops_core.registry import declare

_cpu = CpuKernels("ascend_ops_core.ops.norm.cpu")

__all__ = ["add_rms_norm", "gemma_rms_norm", "layer_norm", "rms_norm", "rms_norm_bias"]


def rms_norm(x: torch.Tensor, weight: torch.Tensor | None, eps: float) -> torch.Tensor:
    """``x / sqrt(mean(x^2) + eps) * weight`` over the last axis.

    Args:
        x: ``[..., D]``, float32, bfloat16 or float16.
        weight: ``[D]`` of any float dtype, or None for the unweighted norm that DeepSeek-V4
            applies to query heads.
        eps: added to the mean square.

    Returns:
        ``[..., D]`` in ``x.dtype``; computed in float32 and rounded once.
    """
    result: torch.Tensor = _RMS_NORM(x, weight, eps)
    return result


def rms_norm_bias(
    x: torch.Tensor, weight: torch.Tensor | None, bias: torch.Tensor, eps: float
) -> torch.Tensor:
    """RMS norm plus a bias, as checkpoints quantised with outlier suppression have it.

    Args:
        x: ``[..., D]``, float32, bfloat16 or float16; may have no rows.
        weight: ``[D]`` of any float dtype, or None.
        bias: ``[D]`` of any float dtype.
        eps: added to the mean square.

    Returns:
        ``rms_norm(x) + bias``, ``[..., D]`` in ``x.dtype``; computed in float32, rounded once.

    Raises:
        InvalidInputError: weight or bias is not ``[D]``.
    """
    check_vectors(x, weight=weight, bias=bias)
    result: torch.Tensor = _RMS_NORM_BIAS(x, weight, bias, eps)
    return result


def gemma_rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """RMS norm of Gemma, which stores ``weight - 1``: ``x / rms * (1 + weight)``.

    Args:
        x: ``[..., D]``, float32, bfloat16 or float16; may have no rows.
        weight: ``[D]`` of any float dtype.
        eps: added to the mean square.

    Returns:
        ``[..., D]`` in ``x.dtype``; computed in float32 and rounded once.

    Raises:
        InvalidInputError: the weight is not ``[D]``.
    """
    check_vectors(x, weight=weight)
    result: torch.Tensor = _GEMMA_RMS_NORM(x, weight, eps)
    return result


def add_rms_norm(
    x: torch.Tensor,
    residual: torch.Tensor,
    weight: torch.Tensor | None,
    bias: torch.Tensor | None,
    eps: float,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Add to the residual stream and norm the sum.

    Args:
        x: ``[..., D]``, float32, bfloat16 or float16; may have no rows.
        residual: as ``x``.
        weight: ``[D]`` of any float dtype, or None.
        bias: ``[D]`` of any float dtype, added to the norm, or None.
        eps: added to the mean square.

    Returns:
        The norm of the sum and the sum, which is the new residual, both ``[..., D]`` in
        ``x.dtype``. The sum is rounded to that dtype before it is normed.

    Raises:
        InvalidInputError: another shape or dtype of the residual; weight or bias is not ``[D]``.
    """
    check_residual(x, residual)
    check_vectors(x, weight=weight, bias=bias)
    normed, total = _ADD_RMS_NORM(x, residual, weight, bias, eps)
    return normed, total


def layer_norm(
    x: torch.Tensor, weight: torch.Tensor | None, bias: torch.Tensor | None, eps: float
) -> torch.Tensor:
    """``(x - mean) / sqrt(variance + eps) * weight + bias`` over the last axis.

    Args:
        x: ``[..., D]``, float32, bfloat16 or float16; may have no rows.
        weight: ``[D]`` of any float dtype, or None.
        bias: ``[D]`` of any float dtype, or None.
        eps: added to the variance.

    Returns:
        ``[..., D]`` in ``x.dtype``; computed in float32 and rounded once.

    Raises:
        InvalidInputError: weight or bias is not ``[D]``.
    """
    check_vectors(x, weight=weight, bias=bias)
    result: torch.Tensor = _LAYER_NORM(x, weight, bias, eps)
    return result


def check_vectors(x: torch.Tensor, **vectors: torch.Tensor | None) -> None:
    """Refuse a weight or bias that does not have one value per channel of ``x``."""
    width = x.shape[-1]
    for name, value in vectors.items():
        if value is not None and value.shape != (width,):
            raise InvalidInputError(
                f"{name} of shape {list(value.shape)} beside x of shape {list(x.shape)}",
                f"it has one value per channel, shape [{width}]",
                "Pass the parameter of this layer.",
            )


def check_residual(x: torch.Tensor, residual: torch.Tensor) -> None:
    """Refuse a residual of another shape or dtype than ``x``."""
    if residual.shape != x.shape or residual.dtype != x.dtype:
        raise InvalidInputError(
            f"residual {list(residual.shape)} of {residual.dtype} beside x {list(x.shape)} of "
            f"{x.dtype}",
            "both have one shape and one dtype",
            "Cast or reshape one of them.",
        )


def _rms_norm_cpu(x: torch.Tensor, weight: torch.Tensor | None, eps: float) -> torch.Tensor:
    kernels = _cpu.usable(x, weight)
    if kernels is not None and kernels.supports(x, weight):
        return kernels.rms_norm(x, weight, eps)
    return reference.rms_norm(x, weight, eps)


def _add_rms_norm_cpu(
    x: torch.Tensor,
    residual: torch.Tensor,
    weight: torch.Tensor | None,
    bias: torch.Tensor | None,
    eps: float,
) -> tuple[torch.Tensor, torch.Tensor]:
    if bias is not None:
        return reference.add_rms_norm(x, residual, weight, bias, eps)
    total = x + residual
    return _rms_norm_cpu(total, weight, eps), total


def _like(x: torch.Tensor) -> torch.Tensor:
    return torch.empty(x.shape, dtype=x.dtype, device=x.device)


_RMS_NORM = declare(
    __name__,
    "rms_norm(Tensor x, Tensor? weight, float eps) -> Tensor",
    npu=("torch_npu", "triton"),
    fake=lambda x, weight, eps: _like(x),
    cpu=_rms_norm_cpu,
)

_RMS_NORM_BIAS = declare(
    __name__,
    "rms_norm_bias(Tensor x, Tensor? weight, Tensor bias, float eps) -> Tensor",
    npu=("triton",),
    fake=lambda x, weight, bias, eps: _like(x),
)

_GEMMA_RMS_NORM = declare(
    __name__,
    "gemma_rms_norm(Tensor x, Tensor weight, float eps) -> Tensor",
    npu=("torch_npu", "triton"),
    fake=lambda x, weight, eps: _like(x),
)

_ADD_RMS_NORM = declare(
    __name__,
    "add_rms_norm(Tensor x, Tensor residual, Tensor? weight, Tensor? bias, float eps)"
    " -> (Tensor, Tensor)",
    npu=("torch_npu", "triton"),
    fake=lambda x, residual, weight, bias, eps: (_like(x), _like(x)),
    cpu=_add_rms_norm_cpu,
)

_LAYER_NORM = declare(
    __name__,
    "layer_norm(Tensor x, Tensor? weight, Tensor? bias, float eps) -> Tensor",
    npu=("torch_npu", "triton"),
    fake=lambda x, weight, bias, eps: _like(x),
)
