"""The norms by torch_npu, and the limits of every NPU implementation.

Not run on hardware; checked against torch_npu's schemas.
"""

from __future__ import annotations

import torch

from ascend_ops_core.devices import DeviceFacts
from ascend_ops_core.support import Support, first_refusal

_FLOATS = (torch.float16, torch.bfloat16, torch.float32)


def rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """``npu_rms_norm``; see :func:`ascend_ops_core.ops.norm.rms_norm`."""
    y: torch.Tensor = torch.ops.npu.npu_rms_norm(x, weight, eps)[0]
    return y


def supports_rms_norm(
    facts: DeviceFacts, x: torch.Tensor, weight: torch.Tensor | None, eps: float
) -> Support:
    """float16, bfloat16 or float32 with a weight of the same dtype (torch_npu's documentation)."""
    return first_refusal(
        (x.dtype in _FLOATS, f"x of {x.dtype}, npu_rms_norm takes float16, bfloat16, float32"),
        (weight is not None, "no weight, npu_rms_norm needs one"),
        (
            weight is None or weight.dtype == x.dtype,
            f"weight of {getattr(weight, 'dtype', None)} beside x of {x.dtype}, "
            "npu_rms_norm takes one dtype",
        ),
        (x.numel() > 0, "x is empty"),
    )


def supports_rms_norm_triton(
    facts: DeviceFacts, x: torch.Tensor, weight: torch.Tensor | None, eps: float
) -> Support:
    """Any float dtype, any width."""
    return first_refusal((x.dtype in _FLOATS, f"x of {x.dtype}, the kernel takes float"))
