"""Quantisation of rows by torch_npu, and the limits of every NPU implementation.

Not run on hardware; checked against torch_npu's schemas.
"""

from __future__ import annotations

import torch

from ascend_ops_core.devices import DeviceFacts
from ascend_ops_core.ops.quantization.formats import FLOATS, exists_on
from ascend_ops_core.support import Support, first_refusal

_QINT8 = 12  # torch.qint8 as npu_quantize wants it; the result is a plain int8 tensor


def dynamic_quantize(
    x: torch.Tensor, smooth: torch.Tensor | None, dtype: torch.dtype
) -> tuple[torch.Tensor, torch.Tensor]:
    """``npu_dynamic_quant``; see :func:`ascend_ops_core.ops.quantization.dynamic_quantize`."""
    values, scale = torch.ops.npu.npu_dynamic_quant(x, smooth_scales=smooth)
    return values, scale


def supports_dynamic_quantize(
    facts: DeviceFacts, x: torch.Tensor, smooth: torch.Tensor | None, dtype: torch.dtype
) -> Support:
    """A2 and A3; float16 or bfloat16 of at least 2 axes to int8; smooth as x (documentation)."""
    return first_refusal(
        (
            facts.family in ("A2", "A3"),
            f"npu_dynamic_quant is documented for A2, A3, not {facts.family}",
        ),
        (dtype == torch.int8, f"to {dtype}, npu_dynamic_quant gives int8"),
        (
            x.dtype in (torch.float16, torch.bfloat16),
            f"x of {x.dtype}, npu_dynamic_quant takes float16, bfloat16",
        ),
        (x.dim() >= 2, f"x of {x.dim()} axis, npu_dynamic_quant takes 2 or more"),
        (
            smooth is None or smooth.dtype == x.dtype,
            f"smooth of {getattr(smooth, 'dtype', None)} beside x of {x.dtype}, "
            "npu_dynamic_quant takes one dtype",
        ),
        (x.numel() > 0, "x is empty"),
    )


def supports_dynamic_quantize_triton(
    facts: DeviceFacts, x: torch.Tensor, smooth: torch.Tensor | None, dtype: torch.dtype
) -> Support:
    """Any float to what the device has of int8 and float8_e4m3fn."""
    return first_refusal(
        (x.dtype in FLOATS, f"x of {x.dtype}, the kernel takes float"), exists_on(facts, dtype)
    )


def static_quantize(
    x: torch.Tensor, scale: torch.Tensor, offset: torch.Tensor | None, dtype: torch.dtype
) -> torch.Tensor:
    """``npu_quantize``; see :func:`ascend_ops_core.ops.quantization.static_quantize`."""
    y: torch.Tensor = torch.ops.npu.npu_quantize(x, scale, offset, _QINT8, x.dim() - 1, True)
    return y


def supports_static_quantize(
    facts: DeviceFacts,
    x: torch.Tensor,
    scale: torch.Tensor,
    offset: torch.Tensor | None,
    dtype: torch.dtype,
) -> Support:
    """A2; int8; scale float32 or bfloat16; offset int8, int32 or bfloat16 (documentation)."""
    offset_dtype = None if offset is None else offset.dtype
    return first_refusal(
        (facts.family == "A2", f"npu_quantize is documented for A2, not {facts.family}"),
        (dtype == torch.int8, f"to {dtype}, npu_quantize gives integers"),
        (x.dtype in FLOATS, f"x of {x.dtype}, npu_quantize takes float16, bfloat16, float32"),
        (
            scale.dtype in (torch.float32, torch.bfloat16),
            f"scale of {scale.dtype}, npu_quantize takes float32, bfloat16",
        ),
        (
            offset_dtype in (None, torch.int8, torch.int32, torch.bfloat16),
            f"offset of {offset_dtype}, npu_quantize takes int8, int32, bfloat16",
        ),
        (x.numel() > 0, "x is empty"),
    )


def supports_static_quantize_triton(
    facts: DeviceFacts,
    x: torch.Tensor,
    scale: torch.Tensor,
    offset: torch.Tensor | None,
    dtype: torch.dtype,
) -> Support:
    """Any float to what the device has of int8 and float8_e4m3fn."""
    return first_refusal(
        (x.dtype in FLOATS, f"x of {x.dtype}, the kernel takes float"), exists_on(facts, dtype)
    )
