"""Gated activations."""

from __future__ import annotations

import torch

from ascend_ops_core.cpu_kernels import CpuKernels
from ascend_ops_core.errors import InvalidInputError
from ascend_ops_core.ops.activation import reference

_cpu = CpuKernels("ascend_ops_core.ops.activation.cpu")

__all__ = ["silu_and_mul_with_clamp"]


def silu_and_mul_with_clamp(gate_up: torch.Tensor, limit: float | None) -> torch.Tensor:
    """``silu(min(gate, limit)) * clamp(up, -limit, limit)`` (DeepSeek-V4's limited SwiGLU).

    Args:
        gate_up: ``[..., 2 * I]``, the gate in the first half.
        limit: positive bound; the gate is bounded from above only. None or 0 switches it off.

    Returns:
        ``[..., I]`` in ``gate_up.dtype``.

    Raises:
        InvalidInputError: a negative limit, or an odd last axis.
    """
    if limit is not None and limit < 0:
        raise InvalidInputError(
            f"swiglu_limit={limit}", "it must be positive", "Use 0 or null to switch it off."
        )
    if gate_up.shape[-1] % 2:
        raise InvalidInputError(
            f"gate_up of width {gate_up.shape[-1]}",
            "gate and up need equal halves",
            "Concatenate gate and up projections of the same width.",
        )
    kernels = _cpu.usable(gate_up)
    if kernels is not None and kernels.supports(gate_up):
        return kernels.silu_and_mul_with_clamp(gate_up, limit)
    return reference.silu_and_mul_with_clamp(gate_up, limit)
