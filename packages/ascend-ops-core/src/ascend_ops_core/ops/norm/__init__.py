"""Root-mean-square norms (Zhang and Sennrich, 2019), accumulated in float32."""

from __future__ import annotations

import torch

from ascend_ops_core.cpu_kernels import CpuKernels
from ascend_ops_core.ops.norm import reference
from ascend_ops_core.registry import declare

_cpu = CpuKernels("ascend_ops_core.ops.norm.cpu")

__all__ = ["rms_norm"]


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


def _rms_norm_cpu(x: torch.Tensor, weight: torch.Tensor | None, eps: float) -> torch.Tensor:
    kernels = _cpu.usable(x, weight)
    if kernels is not None and kernels.supports(x, weight):
        return kernels.rms_norm(x, weight, eps)
    return reference.rms_norm(x, weight, eps)


_RMS_NORM = declare(
    __name__,
    "rms_norm(Tensor x, Tensor? weight, float eps) -> Tensor",
    npu=("torch_npu", "triton"),
    fake=lambda x, weight, eps: torch.empty(x.shape, dtype=x.dtype, device=x.device),
    cpu=_rms_norm_cpu,
)
