"""The activations by torch_npu, and the limits of every NPU implementation.

Not run on hardware; checked against torch_npu's schemas.
"""

from __future__ import annotations

import torch

from ascend_ops_core.devices import DeviceFacts
from ascend_ops_core.support import Support, first_refusal

_FLOATS = (torch.float16, torch.bfloat16, torch.float32)


def silu_and_mul(gate_up: torch.Tensor) -> torch.Tensor:
    """``npu_swiglu``; see :func:`ascend_ops_core.ops.activation.silu_and_mul`."""
    y: torch.Tensor = torch.ops.npu.npu_swiglu(gate_up, -1)
    return y


def supports_silu_and_mul(facts: DeviceFacts, gate_up: torch.Tensor) -> Support:
    """1 to 8 axes of float16, bfloat16 or float32 (torch_npu's documentation)."""
    return first_refusal(
        _float("npu_swiglu", gate_up),
        _rank("npu_swiglu", gate_up, 1),
        (gate_up.numel() > 0, "gate_up is empty"),
    )


def supports_silu_and_mul_triton(facts: DeviceFacts, gate_up: torch.Tensor) -> Support:
    """Any float dtype, any width."""
    return first_refusal(_float("the kernel", gate_up))


def silu_and_mul_with_clamp(gate_up: torch.Tensor, limit: float | None) -> torch.Tensor:
    """``npu_clipped_swiglu``, or ``npu_swiglu`` without a limit."""
    if not limit:
        return silu_and_mul(gate_up)
    return swiglu_oai_and_mul(gate_up, 1.0, limit, 0.0, False)


def supports_silu_and_mul_with_clamp(
    facts: DeviceFacts, gate_up: torch.Tensor, limit: float | None
) -> Support:
    """The limits of whichever of the two operators is called."""
    if not limit:
        return supports_silu_and_mul(facts, gate_up)
    return supports_swiglu_oai_and_mul(facts, gate_up, 1.0, limit, 0.0, False)


def supports_silu_and_mul_with_clamp_triton(
    facts: DeviceFacts, gate_up: torch.Tensor, limit: float | None
) -> Support:
    """Any float dtype, any width."""
    return first_refusal(_float("the kernel", gate_up))


def swiglu_oai_and_mul(
    gate_up: torch.Tensor, alpha: float, limit: float, bias: float, interleaved: bool
) -> torch.Tensor:
    """``npu_clipped_swiglu``; see :func:`ascend_ops_core.ops.activation.swiglu_oai_and_mul`."""
    y: torch.Tensor = torch.ops.npu.npu_clipped_swiglu(
        gate_up, dim=-1, alpha=alpha, limit=limit, bias=bias, interleaved=interleaved
    )
    return y


def supports_swiglu_oai_and_mul(
    facts: DeviceFacts,
    gate_up: torch.Tensor,
    alpha: float,
    limit: float,
    bias: float,
    interleaved: bool,
) -> Support:
    """A2 and A3; more than one axis, contiguous, a float dtype (torch_npu's documentation)."""
    return first_refusal(
        (
            facts.family in ("A2", "A3"),
            f"{facts.family}, npu_clipped_swiglu is documented for A2, A3",
        ),
        _float("npu_clipped_swiglu", gate_up),
        _rank("npu_clipped_swiglu", gate_up, 2),
        (gate_up.is_contiguous(), "gate_up is strided, npu_clipped_swiglu takes contiguous rows"),
        (gate_up.numel() > 0, "gate_up is empty"),
    )


def supports_swiglu_oai_and_mul_triton(
    facts: DeviceFacts,
    gate_up: torch.Tensor,
    alpha: float,
    limit: float,
    bias: float,
    interleaved: bool,
) -> Support:
    """Any float dtype, any width."""
    return first_refusal(_float("the kernel", gate_up))


def supports_swiglustep_and_mul_triton(
    facts: DeviceFacts, gate_up: torch.Tensor, limit: float
) -> Support:
    """Any float dtype, any width."""
    return first_refusal(_float("the kernel", gate_up))


def supports_situ_and_mul_triton(
    facts: DeviceFacts, gate_up: torch.Tensor, beta: float, linear_beta: float | None
) -> Support:
    """Any float dtype, any width."""
    return first_refusal(_float("the kernel", gate_up))


def quick_gelu(x: torch.Tensor) -> torch.Tensor:
    """``npu_fast_gelu``, whose formula on A2 and A3 is ``x / (1 + exp(-1.702 x))``."""
    y: torch.Tensor = torch.ops.npu.npu_fast_gelu(x)
    return y


def supports_quick_gelu(facts: DeviceFacts, x: torch.Tensor) -> Support:
    """A2 and A3; at most 8 axes of float16, bfloat16 or float32 (torch_npu's documentation).

    For older products the documentation gives another formula, for A5 none.
    """
    return first_refusal(
        (
            facts.family in ("A2", "A3"),
            f"{facts.family}, npu_fast_gelu is x / (1 + exp(-1.702 x)) on A2, A3",
        ),
        _float("npu_fast_gelu", x),
        _rank("npu_fast_gelu", x, 0),
        (x.numel() > 0, "x is empty"),
    )


def supports_quick_gelu_triton(facts: DeviceFacts, x: torch.Tensor) -> Support:
    """Any float dtype."""
    return first_refusal(_float("the kernel", x))


def _float(taker: str, x: torch.Tensor) -> tuple[bool, str]:
    return x.dtype in _FLOATS, f"{x.dtype}, {taker} takes float16, bfloat16, float32"


def _rank(taker: str, x: torch.Tensor, least: int) -> tuple[bool, str]:
    return least <= x.dim() <= 8, f"{x.dim()} axes, {taker} takes {least} to 8"
