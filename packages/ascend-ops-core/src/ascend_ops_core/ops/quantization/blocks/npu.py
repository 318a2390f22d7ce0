"""Quantisation of blocks by torch_npu, and the limits of every NPU implementation.

Not run on hardware; checked against torch_npu's schemas.
"""

from __future__ import annotations

import torch

from ascend_ops_core.devices import DeviceFacts
from ascend_ops_core.ops.quantization.formats import FLOATS, exists_on
from ascend_ops_core.support import Support, first_refusal


def block_quantize(
    x: torch.Tensor,
    dtype: torch.dtype,
    rows: int,
    scale_dtype: torch.dtype,
    min_magnitude: float,
) -> tuple[torch.Tensor, torch.Tensor]:
    """``npu_dynamic_block_quant``; see :func:`ascend_ops_core.ops.quantization.block_quantize`."""
    values, scale = torch.ops.npu.npu_dynamic_block_quant(x)
    return values, scale


def supports_block_quantize(
    facts: DeviceFacts,
    x: torch.Tensor,
    dtype: torch.dtype,
    rows: int,
    scale_dtype: torch.dtype,
    min_magnitude: float,
) -> Support:
    """A2 and A3; float16 or bfloat16 of 2 or 3 axes to int8 in blocks of 1 x 128."""
    op = "npu_dynamic_block_quant"
    return first_refusal(
        (facts.family in ("A2", "A3"), f"{op} is documented for A2, A3, not {facts.family}"),
        (dtype == torch.int8, f"to {dtype}, {op} gives int8"),
        (rows == 1, f"blocks of {rows} rows, {op} has 1"),
        (scale_dtype == torch.float32, f"scales of {scale_dtype}, {op} gives float32"),
        (min_magnitude == 0.0, f"min_magnitude={min_magnitude}, {op} bounds the scale itself"),
        (
            x.dtype in (torch.float16, torch.bfloat16),
            f"x of {x.dtype}, {op} takes float16, bfloat16",
        ),
        (x.dim() in (2, 3), f"x of {x.dim()} axes, {op} takes 2 or 3"),
        (x.numel() > 0, "x is empty"),
    )


def supports_block_quantize_triton(
    facts: DeviceFacts,
    x: torch.Tensor,
    dtype: torch.dtype,
    rows: int,
    scale_dtype: torch.dtype,
    min_magnitude: float,
) -> Support:
    """Any float to what the device has of int8 and float8_e4m3fn."""
    return first_refusal(
        (x.dtype in FLOATS, f"x of {x.dtype}, the kernel takes float"), exists_on(facts, dtype)
    )


def supports_block_dequantize_triton(
    facts: DeviceFacts, q: torch.Tensor, scale: torch.Tensor, rows: int, dtype: torch.dtype
) -> Support:
    """What the device has of int8 and float8_e4m3fn, to any float."""
    return first_refusal(
        exists_on(facts, q.dtype), (dtype in FLOATS, f"to {dtype}, the kernel gives float")
    )
