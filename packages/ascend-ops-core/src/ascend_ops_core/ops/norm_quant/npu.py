"""The quantising norms by torch_npu, and the limits of every NPU implementation.

Not run on hardware; checked against torch_npu's schemas.
"""

from __future__ import annotations

import torch

from ascend_ops_core.devices import DeviceFacts
from ascend_ops_core.ops.norm.npu import takes_float
from ascend_ops_core.support import Support, first_refusal

_OP = "npu_add_rms_norm_dynamic_quant"


def add_rms_norm_dynamic_quant(
    x: torch.Tensor,
    residual: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    smooth_scale: torch.Tensor | None,
    eps: float,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """See :func:`ascend_ops_core.ops.norm_quant.add_rms_norm_dynamic_quant`."""
    values, _, total, scale, _ = torch.ops.npu.npu_add_rms_norm_dynamic_quant(
        x, residual, weight, smooth_scale1=smooth_scale, beta=bias, epsilon=eps
    )
    return values, scale, total


def supports_add_rms_norm_dynamic_quant(
    facts: DeviceFacts,
    x: torch.Tensor,
    residual: torch.Tensor,
    weight: torch.Tensor | None,
    bias: torch.Tensor | None,
    smooth_scale: torch.Tensor | None,
    eps: float,
) -> Support:
    """A2 and A3; float16 or bfloat16, 2 to 8 dimensions, not empty (torch_npu's documentation)."""
    vectors = {"weight": weight, "bias": bias, "smooth_scale": smooth_scale}
    return first_refusal(
        (facts.family in ("A2", "A3"), f"{facts.family}, {_OP} is documented for A2 and A3"),
        (
            x.dtype in (torch.float16, torch.bfloat16),
            f"x of {x.dtype}, {_OP} takes float16, bfloat16",
        ),
        (2 <= x.dim() <= 8, f"x of {x.dim()} dimensions, {_OP} takes 2 to 8"),
        (weight is not None, f"no weight, {_OP} needs one"),
        *(
            (
                value is None or value.dtype == x.dtype,
                f"{name} of {getattr(value, 'dtype', None)} beside x of {x.dtype}, {_OP} takes "
                "one dtype",
            )
            for name, value in vectors.items()
        ),
        (x.numel() > 0, "x is empty"),
    )


def supports_add_rms_norm_dynamic_quant_triton(
    facts: DeviceFacts,
    x: torch.Tensor,
    residual: torch.Tensor,
    weight: torch.Tensor | None,
    bias: torch.Tensor | None,
    smooth_scale: torch.Tensor | None,
    eps: float,
) -> Support:
    """Any float dtype, any width."""
    return takes_float(x)


def supports_rms_norm_dynamic_quant_triton(
    facts: DeviceFacts,
    x: torch.Tensor,
    weight: torch.Tensor | None,
    bias: torch.Tensor | None,
    smooth_scale: torch.Tensor | None,
    eps: float,
) -> Support:
    """Any float dtype, any width."""
    return takes_float(x)
