"""Quantisation of blocks of 128 columns: of each row (activations) or of 128 rows (weights)."""

from __future__ import annotations

import torch

from ascend_ops_core.errors import InvalidInputError
from ascend_ops_core.ops.quantization.formats import (
    LARGEST,
    check_result,
    check_target,
    check_values,
)
from ascend_ops_core.registry import declare

__all__ = ["COLUMNS", "block_dequantize", "block_quantize"]

COLUMNS = 128
"""Columns of a block."""

_ROWS = (1, 128)
_SCALES = (torch.float32, torch.uint8)


def block_quantize(
    x: torch.Tensor,
    dtype: torch.dtype = torch.float8_e4m3fn,
    *,
    rows: int = 1,
    scale_dtype: torch.dtype = torch.float32,
    min_magnitude: float = 0.0,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Symmetric quantisation with one scale for each block of ``rows`` x 128 elements.

    With ``m = max(max |block|, min_magnitude)`` and ``largest`` 448 for float8_e4m3fn or 127 for
    int8, the scale is ``m / largest``, or, as a power of two, ``2^ceil(log2(m / largest))``, which
    never makes a value saturate. Blocks at the right and lower edge may be smaller.

    Args:
        x: ``[..., D]``, float32, bfloat16 or float16; any of the leading axes may be 0. With
            ``rows=128`` it is ``[N, D]``.
        dtype: ``torch.float8_e4m3fn`` (A5 and CPUs) or ``torch.int8``.
        rows: 1 (DeepSeek's activations) or 128 (its weights).
        scale_dtype: ``torch.float32`` (DeepSeek-V3) or ``torch.uint8`` for powers of two
            (DeepSeek-V4).
        min_magnitude: lower bound of ``m``; DeepSeek's own kernel has 1e-4.

    Returns:
        Values of ``x``'s shape in ``dtype``, and scales ``[..., ceil(D / 128)]``, with ``rows=128``
        ``[ceil(N / 128), ceil(D / 128)]``, in ``scale_dtype``.

    Raises:
        InvalidInputError: another dtype or block, or a matrix that is none.

    Source: DeepSeek-V3's and V4's reference ``act_quant``.
    """
    check_values("x", x)
    check_target(dtype)
    _check_blocks(x, rows)
    if scale_dtype not in _SCALES:
        raise InvalidInputError(
            f"scale_dtype {scale_dtype}",
            "scales are torch.float32, or torch.uint8 for powers of two",
            "Choose one.",
        )
    if not 0.0 <= min_magnitude < float("inf"):
        raise InvalidInputError(
            f"min_magnitude={min_magnitude}", "it is finite and at least 0", "Leave it at 0."
        )
    return _BLOCK_QUANTIZE(x, dtype, rows, scale_dtype, min_magnitude)


def block_dequantize(
    q: torch.Tensor,
    scale: torch.Tensor,
    dtype: torch.dtype = torch.bfloat16,
    *,
    rows: int = 1,
) -> torch.Tensor:
    """The inverse of :func:`block_quantize`: ``q * scale``, in float32 and rounded once.

    Args:
        q: ``[..., D]``, float8_e4m3fn (A5 and CPUs) or int8; with ``rows=128`` ``[N, D]``.
        scale: as :func:`block_quantize` gives it; ``torch.float8_e8m0fnu`` is taken as well.
        dtype: float32, bfloat16 or float16.
        rows: rows of a block, 1 or 128.

    Returns:
        ``q``'s shape in ``dtype``.

    Raises:
        InvalidInputError: another dtype or block, or a scale that does not fit.
    """
    if q.dtype not in LARGEST:
        raise InvalidInputError(
            f"q of {q.dtype}", "values are float8_e4m3fn or int8", "See block_quantize."
        )
    check_result(dtype)
    _check_blocks(q, rows)
    if scale.dtype == torch.float8_e8m0fnu:
        scale = scale.view(torch.uint8)
    wanted = scale_shape(q.shape, rows)
    if scale.dtype not in _SCALES or tuple(scale.shape) != wanted:
        raise InvalidInputError(
            f"scale {scale.dtype} {tuple(scale.shape)}",
            f"float32, or uint8 for powers of two, of shape {wanted}",
            "See block_quantize.",
        )
    return _BLOCK_DEQUANTIZE(q, scale, rows, dtype)


def scale_shape(shape: torch.Size, rows: int) -> tuple[int, ...]:
    """Shape of the scales of values of ``shape``."""
    leading = tuple(shape[:-1]) if rows == 1 else (-(-shape[0] // rows),)
    return (*leading, -(-shape[-1] // COLUMNS))


def _check_blocks(x: torch.Tensor, rows: int) -> None:
    if rows not in _ROWS:
        raise InvalidInputError(f"rows={rows}", "a block has 1 or 128 rows", "Choose one.")
    if rows != 1 and x.dim() != 2:
        raise InvalidInputError(
            f"{tuple(x.shape)} in blocks of {rows} rows",
            "such blocks tile a matrix",
            "Pass [N, D].",
        )
    if x.shape[-1] == 0:
        raise InvalidInputError(
            f"{tuple(x.shape)}", "a row has at least 1 column", "Leave empty rows out."
        )


_BLOCK_QUANTIZE = declare(
    __name__,
    "block_quantize(Tensor x, ScalarType dtype, int rows, ScalarType scale_dtype, "
    "float min_magnitude) -> (Tensor, Tensor)",
    npu=("torch_npu", "triton"),
    fake=lambda x, dtype, rows, scale_dtype, min_magnitude: (
        torch.empty(x.shape, dtype=dtype, device=x.device),
        torch.empty(scale_shape(x.shape, rows), dtype=scale_dtype, device=x.device),
    ),
)

_BLOCK_DEQUANTIZE = declare(
    __name__,
    "block_dequantize(Tensor q, Tensor scale, int rows, ScalarType dtype) -> Tensor",
    npu=("triton",),
    fake=lambda q, scale, rows, dtype: torch.empty(q.shape, dtype=dtype, device=q.device),
)
