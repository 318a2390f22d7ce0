"""The norms by torch_npu, and the limits of every NPU implementation.

Not run on hardware; checked against torch_npu's schemas.
"""

from __future__ import annotations

import torch

from ascend_ops_core.devices import DeviceFacts
from ascend_ops_core.support import Support, first_refusal

_FLOATS = (torch.float16, torch.bfloat16, torch.float32)
_DOCUMENTED_DIMENSIONS = 8


def rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """``npu_rms_norm``; see :func:`ascend_ops_core.ops.norm.rms_norm`."""
    y: torch.Tensor = torch.ops.npu.npu_rms_norm(x, weight, eps)[0]
    return y


def supports_rms_norm(
    facts: DeviceFacts, x: torch.Tensor, weight: torch.Tensor | None, eps: float
) -> Support:
    """float16, bfloat16 or float32 with a weight of the same dtype (torch_npu's documentation)."""
    return _takes_rows("npu_rms_norm", x, weight)


def gemma_rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """``npu_gemma_rms_norm``; see :func:`ascend_ops_core.ops.norm.gemma_rms_norm`."""
    y: torch.Tensor = torch.ops.npu.npu_gemma_rms_norm(x, weight, eps)[0]
    return y


def supports_gemma_rms_norm(
    facts: DeviceFacts, x: torch.Tensor, weight: torch.Tensor, eps: float
) -> Support:
    """A2 and A3; contiguous, one dtype (torch_npu's documentation)."""
    return first_refusal(
        (
            facts.family in ("A2", "A3"),
            f"{facts.family}, npu_gemma_rms_norm is documented for A2 and A3",
        ),
        (x.is_contiguous(), "x is not contiguous, npu_gemma_rms_norm needs it"),
    ) and _takes_rows("npu_gemma_rms_norm", x, weight)


def add_rms_norm(
    x: torch.Tensor,
    residual: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    eps: float,
) -> tuple[torch.Tensor, torch.Tensor]:
    """``npu_add_rms_norm``; see :func:`ascend_ops_core.ops.norm.add_rms_norm`."""
    normed, _, total = torch.ops.npu.npu_add_rms_norm(x, residual, weight, eps)
    return normed, total


def supports_add_rms_norm(
    facts: DeviceFacts,
    x: torch.Tensor,
    residual: torch.Tensor,
    weight: torch.Tensor | None,
    bias: torch.Tensor | None,
    eps: float,
) -> Support:
    """One dtype, no bias. torch_npu documents no limits; those of npu_rms_norm are assumed."""
    return first_refusal(
        (bias is None, "a bias, npu_add_rms_norm takes none"),
    ) and _takes_rows("npu_add_rms_norm", x, weight)


def layer_norm(
    x: torch.Tensor, weight: torch.Tensor | None, bias: torch.Tensor | None, eps: float
) -> torch.Tensor:
    """``npu_layer_norm_eval``; see :func:`ascend_ops_core.ops.norm.layer_norm`."""
    y: torch.Tensor = torch.ops.npu.npu_layer_norm_eval(x, [x.shape[-1]], weight, bias, eps)
    return y


def supports_layer_norm(
    facts: DeviceFacts,
    x: torch.Tensor,
    weight: torch.Tensor | None,
    bias: torch.Tensor | None,
    eps: float,
) -> Support:
    """As torch's layer_norm (torch_npu's documentation), whose weights have the input's dtype."""
    return first_refusal(
        (x.dtype in _FLOATS, f"x of {x.dtype}, npu_layer_norm_eval takes float"),
        *_same_dtype("npu_layer_norm_eval", x, weight=weight, bias=bias),
        (x.numel() > 0, "x is empty"),
    )


def supports_rms_norm_triton(
    facts: DeviceFacts, x: torch.Tensor, weight: torch.Tensor | None, eps: float
) -> Support:
    """Any float dtype, any width."""
    return takes_float(x)


def supports_rms_norm_bias_triton(
    facts: DeviceFacts,
    x: torch.Tensor,
    weight: torch.Tensor | None,
    bias: torch.Tensor,
    eps: float,
) -> Support:
    """Any float dtype, any width."""
    return takes_float(x)


def supports_gemma_rms_norm_triton(
    facts: DeviceFacts, x: torch.Tensor, weight: torch.Tensor, eps: float
) -> Support:
    """Any float dtype, any width."""
    return takes_float(x)


def supports_add_rms_norm_triton(
    facts: DeviceFacts,
    x: torch.Tensor,
    residual: torch.Tensor,
    weight: torch.Tensor | None,
    bias: torch.Tensor | None,
    eps: float,
) -> Support:
    """Any float dtype, any width."""
    return takes_float(x)


def supports_layer_norm_triton(
    facts: DeviceFacts,
    x: torch.Tensor,
    weight: torch.Tensor | None,
    bias: torch.Tensor | None,
    eps: float,
) -> Support:
    """Any float dtype, any width."""
    return takes_float(x)


def takes_float(x: torch.Tensor) -> Support:
    """What the kernels of the norms take."""
    return first_refusal((x.dtype in _FLOATS, f"x of {x.dtype}, the kernel takes float"))


def _takes_rows(op: str, x: torch.Tensor, weight: torch.Tensor | None) -> Support:
    return first_refusal(
        (x.dtype in _FLOATS, f"x of {x.dtype}, {op} takes float16, bfloat16, float32"),
        (weight is not None, f"no weight, {op} needs one"),
        *_same_dtype(op, x, weight=weight),
        (
            x.dim() <= _DOCUMENTED_DIMENSIONS,
            f"x of {x.dim()} dimensions, {op} takes up to {_DOCUMENTED_DIMENSIONS}",
        ),
        (x.numel() > 0, "x is empty"),
    )


def _same_dtype(
    op: str, x: torch.Tensor, **vectors: torch.Tensor | None
) -> tuple[tuple[bool, str], ...]:
    return tuple(
        (
            value is None or value.dtype == x.dtype,
            f"{name} of {getattr(value, 'dtype', None)} beside x of {x.dtype}, {op} takes one "
            "dtype",
        )
        for name, value in vectors.items()
    )
