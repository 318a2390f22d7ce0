"""Microscaling formats (OCP MX v1.0): 32 values share a power of two. MXFP8 (E4M3), MXFP4 (E2M1).

The shared exponent is ``floor(log2(max |block|))`` less the exponent of the format's largest value
(8 for E4M3, 2 for E2M1), at least -127; values that the scaled format cannot hold saturate.

NPUs other than A5 have neither float8 nor units for FP4. FP4 weights can be unpacked there, by
torch's own operators; quantising is refused.
"""

from __future__ import annotations

import torch

from ascend_ops_core.errors import InvalidInputError
from ascend_ops_core.ops.quantization.formats import check_result, check_values
from ascend_ops_core.registry import declare

__all__ = [
    "BLOCK",
    "fp4_pack",
    "fp4_unpack",
    "mxfp4_dequantize",
    "mxfp4_quantize",
    "mxfp8_dequantize",
    "mxfp8_quantize",
]

BLOCK = 32
"""Values that share a scale."""


def mxfp8_quantize(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Quantise to MXFP8: float8_e4m3fn values and a power of two for each 32 of them.

    Args:
        x: ``[..., D]``, float32, bfloat16 or float16, ``D`` a multiple of 32; any of the leading
            axes may be 0.

    Returns:
        Values ``[..., D]`` in float8_e4m3fn and scales ``[..., D / 32]`` in uint8 (exponent plus
        127, 255 for NaN).

    Raises:
        InvalidInputError: another dtype or width.

    Source: OCP Microscaling Formats v1.0, section 6.3.
    """
    check_values("x", x)
    _check_blocks("x", x.shape[-1])
    return _MXFP8_QUANTIZE(x)


def mxfp8_dequantize(
    q: torch.Tensor, scale: torch.Tensor, dtype: torch.dtype = torch.bfloat16
) -> torch.Tensor:
    """The inverse of :func:`mxfp8_quantize`: ``q * scale``, in float32 and rounded once.

    Args:
        q: ``[..., D]`` float8_e4m3fn, ``D`` a multiple of 32.
        scale: ``[..., D / 32]``, uint8 or float8_e8m0fnu.
        dtype: float32, bfloat16 or float16.

    Returns:
        ``[..., D]`` in ``dtype``.

    Raises:
        InvalidInputError: another dtype, width or scale.
    """
    _check_dtype("q", q, torch.float8_e4m3fn)
    check_result(dtype)
    _check_blocks("q", q.shape[-1])
    return _MXFP8_DEQUANTIZE(q, _checked_scale(scale, q.shape, q.shape[-1]), dtype)


def mxfp4_quantize(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Quantise to MXFP4: FP4 (E2M1) values, two in a byte, and a power of two for each 32.

    Args:
        x: ``[..., D]``, float32, bfloat16 or float16, ``D`` a multiple of 32; any of the leading
            axes may be 0.

    Returns:
        Packed values ``[..., D / 2]`` in uint8, the even one in the low bits, and scales
        ``[..., D / 32]`` in uint8 (exponent plus 127, 255 for NaN).

    Raises:
        InvalidInputError: another dtype or width.

    Source: OCP Microscaling Formats v1.0, section 6.3; torch_npu's ``npu_dynamic_mx_quant``.
    """
    check_values("x", x)
    _check_blocks("x", x.shape[-1])
    return _MXFP4_QUANTIZE(x)


def mxfp4_dequantize(
    q: torch.Tensor, scale: torch.Tensor, dtype: torch.dtype = torch.bfloat16
) -> torch.Tensor:
    """The inverse of :func:`mxfp4_quantize`.

    Args:
        q: ``[..., D / 2]`` uint8, ``D`` a multiple of 32.
        scale: ``[..., D / 32]``, uint8 or float8_e8m0fnu.
        dtype: float32, bfloat16 or float16.

    Returns:
        ``[..., D]`` in ``dtype``.

    Raises:
        InvalidInputError: another dtype, width or scale.
    """
    _check_dtype("q", q, torch.uint8)
    check_result(dtype)
    _check_blocks("unpacked q", 2 * q.shape[-1])
    return _MXFP4_DEQUANTIZE(q, _checked_scale(scale, q.shape, 2 * q.shape[-1]), dtype)


def fp4_pack(codes: torch.Tensor) -> torch.Tensor:
    """Put two FP4 codes into each byte, the even one in the low bits.

    Args:
        codes: ``[..., D]`` uint8, each 0 to 15 (only its four low bits count), ``D`` even.

    Returns:
        ``[..., D / 2]`` uint8.

    Raises:
        InvalidInputError: another dtype, or an odd width.
    """
    _check_dtype("codes", codes, torch.uint8)
    if codes.shape[-1] % 2:
        raise InvalidInputError(
            f"codes {tuple(codes.shape)}", "two codes fill a byte", "Pad the last axis by one."
        )
    return _FP4_PACK(codes)


def fp4_unpack(packed: torch.Tensor) -> torch.Tensor:
    """The inverse of :func:`fp4_pack`.

    Args:
        packed: ``[..., D / 2]`` uint8.

    Returns:
        ``[..., D]`` uint8, each 0 to 15.

    Raises:
        InvalidInputError: another dtype.
    """
    _check_dtype("packed", packed, torch.uint8)
    return _FP4_UNPACK(packed)


def _check_dtype(name: str, value: torch.Tensor, dtype: torch.dtype) -> None:
    if value.dtype != dtype or value.dim() == 0:
        raise InvalidInputError(
            f"{name} {value.dtype} {tuple(value.shape)}",
            f"it is {dtype} with an axis",
            "Convert it.",
        )


def _check_blocks(name: str, width: int) -> None:
    if width % BLOCK or width == 0:
        raise InvalidInputError(
            f"{name} of {width} columns",
            f"blocks of {BLOCK} fill a row",
            "Pad the last axis with zeros.",
        )


def _checked_scale(scale: torch.Tensor, shape: torch.Size, width: int) -> torch.Tensor:
    if scale.dtype == torch.float8_e8m0fnu:
        scale = scale.view(torch.uint8)
    wanted = (*shape[:-1], width // BLOCK)
    if scale.dtype != torch.uint8 or tuple(scale.shape) != wanted:
        raise InvalidInputError(
            f"scale {scale.dtype} {tuple(scale.shape)}",
            f"uint8 or float8_e8m0fnu of shape {wanted}",
            "One scale for each 32 values.",
        )
    return scale


def _resized(x: torch.Tensor, width: int, dtype: torch.dtype) -> torch.Tensor:
    return torch.empty((*x.shape[:-1], width), dtype=dtype, device=x.device)


_MXFP8_QUANTIZE = declare(
    __name__,
    "mxfp8_quantize(Tensor x) -> (Tensor, Tensor)",
    npu=("torch_npu", "triton"),
    fake=lambda x: (
        _resized(x, x.shape[-1], torch.float8_e4m3fn),
        _resized(x, x.shape[-1] // BLOCK, torch.uint8),
    ),
)

_MXFP8_DEQUANTIZE = declare(
    __name__,
    "mxfp8_dequantize(Tensor q, Tensor scale, ScalarType dtype) -> Tensor",
    npu=("triton",),
    fake=lambda q, scale, dtype: _resized(q, q.shape[-1], dtype),
)

_MXFP4_QUANTIZE = declare(
    __name__,
    "mxfp4_quantize(Tensor x) -> (Tensor, Tensor)",
    npu=("torch_npu", "triton"),
    fake=lambda x: (
        _resized(x, x.shape[-1] // 2, torch.uint8),
        _resized(x, x.shape[-1] // BLOCK, torch.uint8),
    ),
)

_MXFP4_DEQUANTIZE = declare(
    __name__,
    "mxfp4_dequantize(Tensor q, Tensor scale, ScalarType dtype) -> Tensor",
    npu=("triton", "torch"),
    fake=lambda q, scale, dtype: _resized(q, 2 * q.shape[-1], dtype),
)

_FP4_PACK = declare(
    __name__,
    "fp4_pack(Tensor codes) -> Tensor",
    npu=("triton", "torch"),
    fake=lambda codes: _resized(codes, codes.shape[-1] // 2, torch.uint8),
)

_FP4_UNPACK = declare(
    __name__,
    "fp4_unpack(Tensor packed) -> Tensor",
    npu=("triton", "torch"),
    fake=lambda packed: _resized(packed, 2 * packed.shape[-1], torch.uint8),
)
