"""Norms with a gate, as Mamba2, Gated DeltaNet and Kimi Delta Attention have behind their mixer."""

from __future__ import annotations

import torch

from ascend_ops_core.cpu_kernels import CpuKernels
from ascend_ops_core.errors import InvalidInputError
from ascend_ops_core.ops.gated_norm import reference
from ascend_ops_core.ops.norm import check_vectors
from ascend_ops_core.registry import declare

_cpu = CpuKernels("ascend_ops_core.ops.gated_norm.cpu")

__all__ = ["ACTIVATIONS", "layer_norm_gated", "rms_norm_gated"]

ACTIVATIONS = ("silu", "swish", "sigmoid")
"""What can be applied to the gate; swish is another name of silu."""


def rms_norm_gated(
    x: torch.Tensor,
    gate: torch.Tensor | None,
    weight: torch.Tensor | None,
    bias: torch.Tensor | None = None,
    *,
    eps: float,
    group_size: int | None = None,
    norm_before_gate: bool = True,
    activation: str = "silu",
) -> torch.Tensor:
    """RMS norm by groups of channels with a gate (Mamba2, Dao and Gu, 2024, and FLA's layers).

    Args:
        x: ``[..., D]``, float32, bfloat16 or float16; may have no rows.
        gate: as ``x``, or None.
        weight: ``[D]`` of any float dtype, or None.
        bias: ``[D]`` of any float dtype, or None.
        eps: added to the mean square.
        group_size: channels that are normed together; it divides ``D``, which it is by default.
        norm_before_gate: True for ``norm(x) * act(gate)``, False for ``norm(x * act(gate))``.
        activation: one of :data:`ACTIVATIONS`.

    Returns:
        ``[..., D]`` in ``x.dtype``; computed in float32 and rounded once.

    Raises:
        InvalidInputError: shapes that do not fit, another activation.
    """
    size = _checked(x, gate, weight, bias, group_size, activation)
    result: torch.Tensor = _RMS_NORM_GATED(
        x, gate, weight, bias, eps, size, norm_before_gate, activation
    )
    return result


def layer_norm_gated(
    x: torch.Tensor,
    gate: torch.Tensor | None,
    weight: torch.Tensor | None,
    bias: torch.Tensor | None = None,
    *,
    eps: float,
    group_size: int | None = None,
    norm_before_gate: bool = True,
    activation: str = "silu",
) -> torch.Tensor:
    """LayerNorm by groups of channels with a gate; arguments as :func:`rms_norm_gated`.

    Returns:
        ``[..., D]`` in ``x.dtype``; computed in float32 and rounded once.

    Raises:
        InvalidInputError: shapes that do not fit, another activation.
    """
    size = _checked(x, gate, weight, bias, group_size, activation)
    result: torch.Tensor = _LAYER_NORM_GATED(
        x, gate, weight, bias, eps, size, norm_before_gate, activation
    )
    return result


def _checked(
    x: torch.Tensor,
    gate: torch.Tensor | None,
    weight: torch.Tensor | None,
    bias: torch.Tensor | None,
    group_size: int | None,
    activation: str,
) -> int:
    width = x.shape[-1]
    size = width if group_size is None else group_size
    if size < 1 or width % size:
        raise InvalidInputError(
            f"group_size={group_size}", f"it divides the {width} channels", "Check the config."
        )
    if activation not in ACTIVATIONS:
        raise InvalidInputError(
            f"activation={activation!r}", f"known are {', '.join(ACTIVATIONS)}", "Use one of them."
        )
    if gate is not None and gate.shape != x.shape:
        raise InvalidInputError(
            f"gate of shape {list(gate.shape)} beside x of shape {list(x.shape)}",
            "both have one shape",
            "Reshape the gate.",
        )
    check_vectors(x, weight=weight, bias=bias)
    return size


def _rms_norm_gated_cpu(
    x: torch.Tensor,
    gate: torch.Tensor | None,
    weight: torch.Tensor | None,
    bias: torch.Tensor | None,
    eps: float,
    group_size: int,
    norm_before_gate: bool,
    activation: str,
) -> torch.Tensor:
    kernels = _cpu.usable(x, gate, weight, bias)
    run = reference.rms_norm_gated
    if kernels is not None and kernels.supports(x, gate, weight, bias):
        run = kernels.rms_norm_gated
    return run(x, gate, weight, bias, eps, group_size, norm_before_gate, activation)


_ARGUMENTS = (
    "(Tensor x, Tensor? gate, Tensor? weight, Tensor? bias, float eps, int group_size,"
    " bool norm_before_gate, str activation) -> Tensor"
)

_RMS_NORM_GATED = declare(
    __name__,
    f"rms_norm_gated{_ARGUMENTS}",
    npu=("triton",),
    fake=lambda x, *rest: torch.empty(x.shape, dtype=x.dtype, device=x.device),
    cpu=_rms_norm_gated_cpu,
)

_LAYER_NORM_GATED = declare(
    __name__,
    f"layer_norm_gated{_ARGUMENTS}",
    npu=("triton",),
    fake=lambda x, *rest: torch.empty(x.shape, dtype=x.dtype, device=x.device),
)
