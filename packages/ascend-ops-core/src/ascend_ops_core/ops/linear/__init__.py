"""Matrix products of tokens with weights, fast for a handful of tokens as well as for many.

On an NPU these are torch's own products: they reach the vendor's cube kernels, which also read
weights in the NZ layout, and a kernel of ours could only repeat them. Results that must not depend
on the batch have their own kernels, :mod:`ascend_ops_core.ops.batch_invariant`.
"""

from __future__ import annotations

import torch

from ascend_ops_core.cpu_kernels import CpuKernels
from ascend_ops_core.ops.linear import reference
from ascend_ops_core.registry import declare

_cpu = CpuKernels("ascend_ops_core.ops.linear.cpu")

__all__ = ["grouped_linear", "linear", "to_nz", "unquantized_gemm"]


def linear(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """``x @ weight.T``.

    Args:
        x: ``[T, K]``.
        weight: ``[N, K]`` of the same dtype.

    Returns:
        ``[T, N]`` in ``x.dtype``, accumulated in float32.
    """
    result: torch.Tensor = _LINEAR(x, weight)
    return result


def _linear_cpu(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
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
    result: torch.Tensor = _GROUPED_LINEAR(x, weight)
    return result


def _grouped_linear_cpu(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    kernels = _cpu.usable(x, weight)
    if kernels is not None and kernels.supports(x, weight):
        return kernels.grouped_linear(x, weight)
    return reference.grouped_linear(x, weight)


def unquantized_gemm(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None
) -> torch.Tensor:
    """``x @ weight.T + bias``, the product of vLLM's linear layers.

    One operator for a compiled graph, whatever the layout of the weight in memory.

    Args:
        x: ``[..., K]``; any number of leading axes, of which any may be 0.
        weight: ``[N, K]`` of the same dtype.
        bias: ``[N]`` of the same dtype, or None.

    Returns:
        ``[..., N]`` in ``x.dtype``, accumulated in float32.
    """
    result: torch.Tensor = _UNQUANTIZED_GEMM(x, weight, bias)
    return result


def to_nz(weight: torch.Tensor) -> torch.Tensor:
    """The same weight in NZ, the cube's layout of 16 x 16 blocks; elsewhere a copy.

    Args:
        weight: ``[N, K]``.

    Returns:
        ``[N, K]`` with the same values; only its place in memory differs.
    """
    result: torch.Tensor = _TO_NZ(weight)
    return result


def _unquantized_gemm_cpu(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None
) -> torch.Tensor:
    if bias is not None:
        return reference.unquantized_gemm(x, weight, bias)
    return _linear_cpu(x.reshape(-1, x.shape[-1]), weight).view(*x.shape[:-1], weight.shape[0])


_LINEAR = declare(
    __name__,
    "linear(Tensor x, Tensor weight) -> Tensor",
    npu=("torch",),
    fake=lambda x, weight: x.new_empty(*x.shape[:-1], weight.shape[0]),
    cpu=_linear_cpu,
)
_GROUPED_LINEAR = declare(
    __name__,
    "grouped_linear(Tensor x, Tensor weight) -> Tensor",
    npu=("torch",),
    fake=lambda x, weight: x.new_empty(x.shape[0], x.shape[1], weight.shape[1]),
    cpu=_grouped_linear_cpu,
)
_UNQUANTIZED_GEMM = declare(
    __name__,
    "unquantized_gemm(Tensor x, Tensor weight, Tensor? bias) -> Tensor",
    npu=("torch",),
    fake=lambda x, weight, bias: x.new_empty(*x.shape[:-1], weight.shape[0]),
    cpu=_unquantized_gemm_cpu,
)
_TO_NZ = declare(
    __name__,
    "to_nz(Tensor weight) -> Tensor",
    npu=("torch_npu", "torch"),
    fake=lambda weight: torch.empty_like(weight),
)
