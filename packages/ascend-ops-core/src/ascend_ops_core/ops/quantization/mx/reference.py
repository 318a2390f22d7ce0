"""Definitions of the microscaling formats."""

from __future__ import annotations

import torch

from ascend_ops_core.ops.quantization.formats import (
    E8M0_BIAS,
    E8M0_NAN,
    e2m1_codes,
    e2m1_values,
    e8m0_values,
    largest_magnitude,
    narrowed,
)

_BLOCK = 32
_E4M3_EXPONENT = 8
_E2M1_EXPONENT = 2


def mxfp8_quantize(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """See :func:`ascend_ops_core.ops.quantization.mxfp8_quantize`."""
    values, scale = _scaled(x, _E4M3_EXPONENT)
    return narrowed(values, torch.float8_e4m3fn), scale


def mxfp8_dequantize(q: torch.Tensor, scale: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """See :func:`ascend_ops_core.ops.quantization.mxfp8_dequantize`."""
    return _unscaled(q.float(), scale).to(dtype)


def mxfp4_quantize(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """See :func:`ascend_ops_core.ops.quantization.mxfp4_quantize`."""
    values, scale = _scaled(x, _E2M1_EXPONENT)
    return fp4_pack(e2m1_codes(values)), scale


def mxfp4_dequantize(q: torch.Tensor, scale: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """See :func:`ascend_ops_core.ops.quantization.mxfp4_dequantize`."""
    return _unscaled(e2m1_values(fp4_unpack(q)), scale).to(dtype)


def fp4_pack(codes: torch.Tensor) -> torch.Tensor:
    """See :func:`ascend_ops_core.ops.quantization.fp4_pack`."""
    return (codes[..., 0::2] & 0xF) | (codes[..., 1::2] << 4)


def fp4_unpack(packed: torch.Tensor) -> torch.Tensor:
    """See :func:`ascend_ops_core.ops.quantization.fp4_unpack`."""
    return torch.stack((packed & 0xF, packed >> 4), dim=-1).flatten(-2)


def _scaled(x: torch.Tensor, exponent_of_largest: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Values divided by their blocks' powers of two, and the codes of those."""
    blocks = x.float().unflatten(-1, (-1, _BLOCK))
    largest = largest_magnitude(blocks, -1)
    # frexp gives a fraction in [0.5, 1), so its exponent is one more than floor(log2).
    exponent = torch.frexp(largest).exponent - 1 - exponent_of_largest
    code = torch.where(largest == 0, 0, exponent + E8M0_BIAS).clamp(min=0)
    code = torch.where(largest.isinf(), E8M0_NAN, code).to(torch.uint8)
    values = blocks * torch.where(
        code == E8M0_NAN, 0.0, torch.ldexp(torch.ones_like(largest), E8M0_BIAS - code.int())
    ).unsqueeze(-1)
    return torch.where(values.isnan(), 0.0, values).flatten(-2), code


def _unscaled(values: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    blocks = values.unflatten(-1, (-1, _BLOCK))
    return (blocks * e8m0_values(scale).unsqueeze(-1)).flatten(-2)
