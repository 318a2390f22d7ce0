"""Quantisation of whole rows: dynamic, with a scale from the row, or static, with a given scale."""

from __future__ import annotations

import torch

from ascend_ops_core.errors import InvalidInputError
from ascend_ops_core.ops.quantization.formats import check_target, check_values
from ascend_ops_core.registry import declare

__all__ = ["dynamic_quantize", "per_token_head_quantize", "static_quantize"]


def dynamic_quantize(
    x: torch.Tensor,
    dtype: torch.dtype = torch.int8,
    *,
    smooth: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Symmetric quantisation with one scale for each row, ``scale = max |row| / largest``.

    ``largest`` is 127 for int8 and 448 for float8_e4m3fn. Zero rows, rows that are not finite and
    rounding are as :mod:`ascend_ops_core.ops.quantization` says. torch_npu documents neither its
    rounding nor what it makes of such rows.

    Args:
        x: ``[..., D]``, float32, bfloat16 or float16; any of the leading axes may be 0. Heads of a
            packed projection, ``[T, H, D]`` with any strides of the first two axes, are read where
            they lie.
        dtype: ``torch.int8`` or, on A5 and CPUs, ``torch.float8_e4m3fn``.
        smooth: ``[D]``, any float dtype; the row is multiplied by it first (SmoothQuant).

    Returns:
        Values ``[..., D]`` in ``dtype`` and scales ``[...]`` in float32.

    Raises:
        InvalidInputError: another dtype, no columns, or ``smooth`` of another shape.

    Source: torch_npu's ``npu_dynamic_quant``.
    """
    check_values("x", x)
    check_target(dtype)
    _check_width(x)
    if smooth is not None:
        check_values("smooth", smooth)
        _check_vector("smooth", smooth, (x.shape[-1],))
    return _DYNAMIC_QUANTIZE(x, smooth, dtype)


def per_token_head_quantize(
    x: torch.Tensor, dtype: torch.dtype = torch.int8
) -> tuple[torch.Tensor, torch.Tensor]:
    """Quantise keys or values for a cache: one scale for each token and head.

    This is :func:`dynamic_quantize` of ``[T, H, D]``, under the name by which caches and the
    lightning indexer ask for it.

    Args:
        x: ``[T, H, D]``, float32, bfloat16 or float16; ``T`` may be 0. Strides of the first two
            axes are free.
        dtype: ``torch.int8`` or, on A5 and CPUs, ``torch.float8_e4m3fn``.

    Returns:
        Values ``[T, H, D]`` in ``dtype`` and scales ``[T, H]`` in float32.

    Raises:
        InvalidInputError: not three axes, or as :func:`dynamic_quantize`.
    """
    if x.dim() != 3:
        raise InvalidInputError(
            f"x {tuple(x.shape)}", "it is [tokens, heads, channels]", "Unflatten the heads."
        )
    return dynamic_quantize(x, dtype)


def static_quantize(
    x: torch.Tensor,
    scale: torch.Tensor,
    offset: torch.Tensor | None = None,
    dtype: torch.dtype = torch.int8,
) -> torch.Tensor:
    """``x / scale + offset``, rounded half to even and saturated.

    NaN becomes 0 in int8 and stays NaN in float8_e4m3fn; infinity saturates in both.

    Args:
        x: ``[..., D]``, float32, bfloat16 or float16; any of the leading axes may be 0.
        scale: ``[1]`` or ``[D]``, any float dtype, above 0 (not checked).
        offset: of ``scale``'s shape, any float dtype or int8 or int32; int8 only.
        dtype: ``torch.int8`` (-128 to 127) or, on A5 and CPUs, ``torch.float8_e4m3fn``
            (-448 to 448).

    Returns:
        ``[..., D]`` in ``dtype``.

    Raises:
        InvalidInputError: another dtype or shape, or an offset for a float format.

    Source: torch_npu's ``npu_quantize`` with ``div_mode``.
    """
    check_values("x", x)
    check_values("scale", scale)
    check_target(dtype)
    _check_width(x)
    _check_vector("scale", scale, (1, x.shape[-1]))
    if offset is not None:
        if dtype != torch.int8:
            raise InvalidInputError(
                f"offset for {dtype}", "a float format is symmetric", "Leave it out."
            )
        _check_vector("offset", offset, (scale.shape[0],))
    return _STATIC_QUANTIZE(x, scale, offset, dtype)


def _check_width(x: torch.Tensor) -> None:
    if x.shape[-1] == 0:
        raise InvalidInputError(
            f"x {tuple(x.shape)}", "a row has at least 1 column", "Leave empty rows out."
        )


def _check_vector(name: str, value: torch.Tensor, sizes: tuple[int, ...]) -> None:
    if value.dim() != 1 or value.shape[0] not in sizes:
        wanted = " or ".join(f"[{size}]" for size in dict.fromkeys(sizes))
        raise InvalidInputError(f"{name} {tuple(value.shape)}", f"it is {wanted}", "Reshape it.")


_DYNAMIC_QUANTIZE = declare(
    __name__,
    "dynamic_quantize(Tensor x, Tensor? smooth, ScalarType dtype) -> (Tensor, Tensor)",
    npu=("torch_npu", "triton"),
    fake=lambda x, smooth, dtype: (
        torch.empty(x.shape, dtype=dtype, device=x.device),
        torch.empty(x.shape[:-1], dtype=torch.float32, device=x.device),
    ),
)

_STATIC_QUANTIZE = declare(
    __name__,
    "static_quantize(Tensor x, Tensor scale, Tensor? offset, ScalarType dtype) -> Tensor",
    npu=("torch_npu", "triton"),
    fake=lambda x, scale, offset, dtype: torch.empty(x.shape, dtype=dtype, device=x.device),
)
