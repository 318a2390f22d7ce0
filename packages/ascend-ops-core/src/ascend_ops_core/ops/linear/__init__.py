"""Matrix products of tokens with weights, fast for a handful of tokens as well as for many."""

from __future__ import annotations

import torch

from ascend_ops_core.cpu_kernels import CpuKernels
from ascend_ops_core.ops.linear import reference

_cpu = CpuKernels("ascend_ops_core.ops.linear.cpu")

__all__ = ["grouped_linear", "linear"]


def linear(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """``x @ weight.T``.

    Args:
        x: ``[T, K]``.
        weight: ``[N, K]`` of the same dtype.

    Returns:
        ``[T, N]`` in ``x.dtype``, accumulated in float32.
    """
    kernels = _cpu.usable(x, weight)
    if kernels is not None and kernels.supports(x, weight):
        return kernels.linear(x, weight)
    return reference.linear(x, weight)


def grouped_linear(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """A separate product for every group: ``x[:, g] @ weight[g].T``.

    Args:
        x: ``[T, G, K]``.
        weight: ``[G, N, K]`` of the same dtype.

    Returns:
        ``[T, G, N]`` in ``x.dtype``.
    """
    kernels = _cpu.usable(x, weight)
    if kernels is not None and kernels.supports(x, weight):
        return kernels.grouped_linear(x, weight)
    return reference.grouped_linear(x, weight)
