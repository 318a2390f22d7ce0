"""Microscaling by torch_npu, and the limits of every NPU implementation.

Not run on hardware; checked against torch_npu's schemas. ``npu_anti_mx_quant`` has no
documentation, so dequantisation does not use it.
"""

from __future__ import annotations

import torch

from ascend_ops_core.devices import DeviceFacts
from ascend_ops_core.ops.quantization.formats import FLOATS, exists_on
from ascend_ops_core.support import Support, first_refusal

_BLOCK = 32
_MAX_AXES = 7
_E4M3 = 292  # torch_npu.float8_e4m3fn
_E2M1 = 296  # torch_npu.float4_e2m1fn_x2


def mxfp8_quantize(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """``npu_dynamic_mx_quant``; see :func:`ascend_ops_core.ops.quantization.mxfp8_quantize`."""
    values, scale = torch.ops.npu.npu_dynamic_mx_quant(x, dst_type=_E4M3)
    return values, _one_by_one(scale, x)


def supports_mxfp8_quantize(facts: DeviceFacts, x: torch.Tensor) -> Support:
    """A5; float16, bfloat16 or float32 of at most 7 axes (documentation)."""
    return _supports_mx_quantize(facts, x)


def supports_mxfp8_quantize_triton(facts: DeviceFacts, x: torch.Tensor) -> Support:
    """Any float, where the device has float8_e4m3fn."""
    return first_refusal(
        (x.dtype in FLOATS, f"x of {x.dtype}, the kernel takes float"),
        exists_on(facts, torch.float8_e4m3fn),
    )


def supports_mxfp8_dequantize_triton(
    facts: DeviceFacts, q: torch.Tensor, scale: torch.Tensor, dtype: torch.dtype
) -> Support:
    """Where the device has float8_e4m3fn, to any float."""
    return first_refusal(
        exists_on(facts, q.dtype), (dtype in FLOATS, f"to {dtype}, the kernel gives float")
    )


def mxfp4_quantize(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """``npu_dynamic_mx_quant``; see :func:`ascend_ops_core.ops.quantization.mxfp4_quantize`."""
    values, scale = torch.ops.npu.npu_dynamic_mx_quant(x, dst_type=_E2M1)
    return values, _one_by_one(scale, x)


def supports_mxfp4_quantize(facts: DeviceFacts, x: torch.Tensor) -> Support:
    """A5; float16, bfloat16 or float32 of at most 7 axes (documentation)."""
    return _supports_mx_quantize(facts, x)


def supports_mxfp4_quantize_triton(facts: DeviceFacts, x: torch.Tensor) -> Support:
    """Any float, on A5."""
    return first_refusal(
        _pairs_on(facts), (x.dtype in FLOATS, f"x of {x.dtype}, the kernel takes float")
    )


def supports_mxfp4_dequantize_triton(
    facts: DeviceFacts, q: torch.Tensor, scale: torch.Tensor, dtype: torch.dtype
) -> Support:
    """To any float, on A5."""
    return first_refusal(_pairs_on(facts), (dtype in FLOATS, f"to {dtype}, the kernel gives float"))


def supports_fp4_pack_triton(facts: DeviceFacts, codes: torch.Tensor) -> Support:
    """On A5."""
    return first_refusal(_pairs_on(facts))


def supports_fp4_unpack_triton(facts: DeviceFacts, packed: torch.Tensor) -> Support:
    """On A5."""
    return first_refusal(_pairs_on(facts))


def _pairs_on(facts: DeviceFacts) -> tuple[bool, str]:
    """The check that neighbours can be put into one byte.

    The compiler for A2 and A3 pads the axis of a pair to 32 bytes: 16 times the work, and a tile of
    16 blocks fills the unified buffer. There torch's own operators do it.
    """
    return facts.family == "A5", f"{facts.family} pads pairs of neighbours to 32 bytes"


def _supports_mx_quantize(facts: DeviceFacts, x: torch.Tensor) -> Support:
    op = "npu_dynamic_mx_quant"
    return first_refusal(
        (facts.family == "A5", f"{op} is documented for A5, not {facts.family}"),
        (x.dtype in FLOATS, f"x of {x.dtype}, {op} takes float16, bfloat16, float32"),
        (x.dim() <= _MAX_AXES, f"x of {x.dim()} axes, {op} takes at most {_MAX_AXES}"),
        (x.numel() > 0, "x is empty"),
    )


def _one_by_one(scale: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    """torch_npu keeps scales in pairs, the last one filled up."""
    return scale.flatten(-2)[..., : x.shape[-1] // _BLOCK].contiguous()
