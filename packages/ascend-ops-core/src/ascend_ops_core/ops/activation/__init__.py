"""Activations of gated and plain feed-forward layers, computed in float32 and rounded once."""

from __future__ import annotations

import torch

from ascend_ops_core.cpu_kernels import CpuKernels
from ascend_ops_core.errors import InvalidInputError
from ascend_ops_core.ops.activation import reference
from ascend_ops_core.registry import declare

_cpu = CpuKernels("ascend_ops_core.ops.activation.cpu")

__all__ = [
    "quick_gelu",
    "silu_and_mul",
    "silu_and_mul_with_clamp",
    "situ_and_mul",
    "swiglu_oai_and_mul",
    "swiglustep_and_mul",
]


def silu_and_mul(gate_up: torch.Tensor) -> torch.Tensor:
    """``silu(gate) * up`` (Shazeer, 2020: SwiGLU).

    Args:
        gate_up: ``[..., 2 * I]``, float32, bfloat16 or float16, the gate in the first half; any
            leading axis may be 0.

    Returns:
        ``[..., I]`` in ``gate_up.dtype``.

    Raises:
        InvalidInputError: an odd last axis.
    """
    _check_halves(gate_up)
    result: torch.Tensor = _SILU_AND_MUL(gate_up)
    return result


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
    check_limit(limit)
    _check_halves(gate_up)
    result: torch.Tensor = _SILU_AND_MUL_WITH_CLAMP(gate_up, limit)
    return result


def swiglu_oai_and_mul(
    gate_up: torch.Tensor,
    alpha: float = 1.702,
    limit: float = 7.0,
    bias: float = 1.0,
    interleaved: bool = True,
) -> torch.Tensor:
    """``g * sigmoid(alpha * g) * (u + bias)``, ``g = min(gate, limit)``, ``u`` limited both ways.

    The activation of gpt-oss (``transformers.models.gpt_oss``), whose gate and up channels
    alternate; MiniMax-M3 applies it to halves.

    Args:
        gate_up: ``[..., 2 * I]``, float32, bfloat16 or float16.
        alpha: factor inside the sigmoid.
        limit: positive bound of the gate from above, and of ``up`` on both sides.
        bias: added to ``up``.
        interleaved: gate channels are the even ones and up channels the odd ones, rather than
            first and second half.

    Returns:
        ``[..., I]`` in ``gate_up.dtype``.

    Raises:
        InvalidInputError: a limit that is not positive, or an odd last axis.
    """
    _check_positive(limit)
    _check_halves(gate_up)
    result: torch.Tensor = _SWIGLU_OAI_AND_MUL(gate_up, alpha, limit, bias, interleaved)
    return result


def swiglustep_and_mul(gate_up: torch.Tensor, limit: float) -> torch.Tensor:
    """``min(silu(gate), limit) * clamp(up, -limit, limit)``: the limit follows the activation.

    Args:
        gate_up: ``[..., 2 * I]``, float32, bfloat16 or float16, the gate in the first half.
        limit: positive bound.

    Returns:
        ``[..., I]`` in ``gate_up.dtype``.

    Raises:
        InvalidInputError: a limit that is not positive, or an odd last axis.
    """
    _check_positive(limit)
    _check_halves(gate_up)
    result: torch.Tensor = _SWIGLUSTEP_AND_MUL(gate_up, limit)
    return result


def situ_and_mul(
    gate_up: torch.Tensor, beta: float, linear_beta: float | None = None
) -> torch.Tensor:
    """``beta * tanh(gate / beta) * sigmoid(gate) * u``, ``u`` bounded by tanh too or ``up`` itself.

    The activation of Kimi-K3 (``SituAndMul`` in vLLM 0.27.1): a SwiGLU whose gate factor stays
    below ``beta``, without a kink.

    Args:
        gate_up: ``[..., 2 * I]``, float32, bfloat16 or float16, the gate in the first half; any
            leading axis may be 0.
        beta: positive bound of the gate.
        linear_beta: positive bound of ``up``: ``u = linear_beta * tanh(up / linear_beta)``. None
            or 0 leaves ``up`` as it is.

    Returns:
        ``[..., I]`` in ``gate_up.dtype``.

    Raises:
        InvalidInputError: a bound that is not positive, or an odd last axis.
    """
    check_situ(beta, linear_beta)
    _check_halves(gate_up)
    result: torch.Tensor = _SITU_AND_MUL(gate_up, beta, linear_beta or None)
    return result


def quick_gelu(x: torch.Tensor) -> torch.Tensor:
    """``x * sigmoid(1.702 * x)``, the approximate GELU of CLIP.

    Args:
        x: any shape, also empty; float32, bfloat16 or float16.

    Returns:
        The shape and dtype of ``x``.
    """
    result: torch.Tensor = _QUICK_GELU(x)
    return result


def check_limit(limit: float | None) -> None:
    """Refuse a negative limit of a SwiGLU, in the words of configs.

    Raises:
        InvalidInputError: ``limit`` is negative or NaN.
    """
    if limit is not None and not limit >= 0:
        raise InvalidInputError(
            f"swiglu_limit={limit}", "it must be positive", "Use 0 or null to switch it off."
        )


def check_situ(beta: float, linear_beta: float | None) -> None:
    """Refuse bounds of :func:`situ_and_mul`, in the words of configs.

    Raises:
        InvalidInputError: ``beta`` is not positive, or ``linear_beta`` is negative; NaN is neither.
    """
    if not beta > 0 or (linear_beta is not None and not linear_beta >= 0):
        raise InvalidInputError(
            f"situ with beta={beta}, linear_beta={linear_beta}",
            "its bounds are positive",
            "Pass activation_situ_beta and activation_situ_linear_beta of the model's config.",
        )


def _check_positive(limit: float) -> None:
    if limit is None or not limit > 0:
        raise InvalidInputError(
            f"limit={limit}", "it must be positive", "Pass the limit of the model's config."
        )


def _check_halves(gate_up: torch.Tensor) -> None:
    if gate_up.shape[-1] % 2:
        raise InvalidInputError(
            f"gate_up of width {gate_up.shape[-1]}",
            "gate and up need equal halves",
            "Concatenate gate and up projections of the same width.",
        )


def _gated_fake(gate_up: torch.Tensor, *_: object) -> torch.Tensor:
    shape = (*gate_up.shape[:-1], gate_up.shape[-1] // 2)
    return torch.empty(shape, dtype=gate_up.dtype, device=gate_up.device)


def _silu_and_mul_cpu(gate_up: torch.Tensor) -> torch.Tensor:
    return _silu_and_mul_with_clamp_cpu(gate_up, None)


def _silu_and_mul_with_clamp_cpu(gate_up: torch.Tensor, limit: float | None) -> torch.Tensor:
    kernels = _cpu.usable(gate_up)
    if kernels is not None and kernels.supports(gate_up):
        return kernels.silu_and_mul_with_clamp(gate_up, limit)
    return reference.silu_and_mul_with_clamp(gate_up, limit)


def _situ_and_mul_cpu(
    gate_up: torch.Tensor, beta: float, linear_beta: float | None
) -> torch.Tensor:
    kernels = _cpu.usable(gate_up)
    if kernels is not None and kernels.supports(gate_up):
        result: torch.Tensor = kernels.situ_and_mul(gate_up, beta, linear_beta)
        return result
    return reference.situ_and_mul(gate_up, beta, linear_beta)


_SILU_AND_MUL = declare(
    __name__,
    "silu_and_mul(Tensor gate_up) -> Tensor",
    npu=("torch_npu", "triton"),
    fake=_gated_fake,
    cpu=_silu_and_mul_cpu,
)

_SILU_AND_MUL_WITH_CLAMP = declare(
    __name__,
    "silu_and_mul_with_clamp(Tensor gate_up, float? limit) -> Tensor",
    npu=("torch_npu", "triton"),
    fake=_gated_fake,
    cpu=_silu_and_mul_with_clamp_cpu,
)

_SWIGLU_OAI_AND_MUL = declare(
    __name__,
    "swiglu_oai_and_mul(Tensor gate_up, float alpha, float limit, float bias, bool interleaved)"
    " -> Tensor",
    npu=("torch_npu", "triton"),
    fake=_gated_fake,
)

_SWIGLUSTEP_AND_MUL = declare(
    __name__,
    "swiglustep_and_mul(Tensor gate_up, float limit) -> Tensor",
    npu=("triton",),
    fake=_gated_fake,
)

_SITU_AND_MUL = declare(
    __name__,
    "situ_and_mul(Tensor gate_up, float beta, float? linear_beta) -> Tensor",
    npu=("triton",),
    fake=_gated_fake,
    cpu=_situ_and_mul_cpu,
)

_QUICK_GELU = declare(
    __name__,
    "quick_gelu(Tensor x) -> Tensor",
    npu=("torch_npu", "triton"),
    fake=lambda x: torch.empty(x.shape, dtype=x.dtype, device=x.device),
)
