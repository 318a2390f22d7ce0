"""Products of tokens with quantised weights, which become float32 tile by tile.

Tokens stay as they are, so a result is that of the dequantised weight. This is how a CPU serves
every quantised checkpoint, and a device those formats that its own products do not take. There the
definition runs, with torch's operators.
"""

from __future__ import annotations

import torch

from ascend_ops_core.checks import require_shape
from ascend_ops_core.cpu_kernels import CpuKernels
from ascend_ops_core.errors import InvalidInputError
from ascend_ops_core.ops.dequantized_linear import reference
from ascend_ops_core.ops.quantization.formats import FLOATS
from ascend_ops_core.quantized_weights.formats import Codes
from ascend_ops_core.registry import declare

_cpu = CpuKernels("ascend_ops_core.ops.dequantized_linear.cpu")

__all__ = ["dequantized_linear", "dequantized_rows"]

_SCALES = (torch.float32, torch.uint8)


def dequantized_linear(
    x: torch.Tensor,
    weight: torch.Tensor,
    scale: torch.Tensor,
    codes: Codes,
    *,
    columns: int,
    scale_rows: torch.Tensor | None = None,
    first_column: int = 0,
) -> torch.Tensor:
    """``x @ w.T`` with ``w[n, k] = value(weight[n, k]) * scale[row(n), (k + f) // c]``.

    A scale of 0 makes zeros; a power of two with the code 255 makes NaN.

    Args:
        x: ``[T, K]``, float32, bfloat16 or float16; ``T`` may be 0.
        weight: ``[N, K]`` float8_e4m3fn or int8, or ``[N, K / 2]`` uint8 with two values in a byte.
        scale: ``[S, C]`` float32, or uint8 for powers of two (exponent plus 127).
        codes: how values are stored.
        columns: ``c``, columns that share a scale; 0 for all.
        scale_rows: ``[N]`` int32, which row of ``scale`` a row has; None where each has its own.
            Rows outside ``scale`` are read from wherever they lie: layouts make this map.
        first_column: ``f``, the place of column 0 among those that share its scale: a slice of a
            weight may begin within a block.

    Returns:
        ``[T, N]`` in ``x.dtype``, accumulated in float32.

    Raises:
        InvalidInputError: shapes or dtypes that do not belong together.
    """
    require_shape("x", x, None, None)
    if x.dtype not in FLOATS:
        raise InvalidInputError(
            f"x of {x.dtype}", "tokens are float32, bfloat16 or float16", "Convert them."
        )
    _check_quantized(weight, scale, codes, x.shape[1], columns, scale_rows, first_column)
    if x.shape[0] == 0:
        return x.new_empty((0, weight.shape[0]))
    result: torch.Tensor = _DEQUANTIZED_LINEAR(
        x, weight, scale, scale_rows, columns, first_column, codes.value
    )
    return result


def dequantized_rows(
    weight: torch.Tensor,
    scale: torch.Tensor,
    codes: Codes,
    *,
    columns: int,
    first_column: int = 0,
) -> torch.Tensor:
    """``[N, K]`` float32: the rows of a weight by themselves; see :func:`dequantized_linear`.

    Raises:
        InvalidInputError: shapes or dtypes that do not belong together.
    """
    width = weight.shape[1] * codes.per_byte
    _check_quantized(weight, scale, codes, width, columns, None, first_column)
    return reference.dequantized(weight, scale, columns, first_column, codes.value)


def _check_quantized(
    weight: torch.Tensor,
    scale: torch.Tensor,
    codes: Codes,
    width: int,
    columns: int,
    scale_rows: torch.Tensor | None,
    first_column: int,
) -> None:
    """Refuse a weight whose parts do not belong together.

    Args:
        weight: see :func:`dequantized_linear`, as all others.
        scale: the same.
        codes: the same.
        width: ``K``.
        columns: the same.
        scale_rows: the same.
        first_column: the same.

    Raises:
        InvalidInputError: the first thing that does not fit.
    """
    if weight.dtype != codes.dtype:
        raise InvalidInputError(
            f"weight of {weight.dtype}", f"{codes.value} is held in {codes.dtype}", "View it."
        )
    share = codes.per_byte
    if columns < 0 or not 0 <= first_column < max(columns, 1) or (columns or share) % share:
        raise InvalidInputError(
            f"columns={columns} and first_column={first_column}",
            f"blocks of columns are whole bytes of {share} value(s), and begin within one",
            "Take both from the weight's layout.",
        )
    if width % share or first_column % share:
        raise InvalidInputError(
            f"{width} columns from {first_column} on", f"{share} share a byte", "Cut elsewhere."
        )
    require_shape("weight", weight, None, width // share)
    blocks = -(-(width + first_column) // columns) if columns else 1
    rows = weight.shape[0] if scale_rows is None else None
    require_shape("scale", scale, rows, blocks)
    if scale.dtype not in _SCALES:
        raise InvalidInputError(
            f"scale of {scale.dtype}", "scales are float32, or uint8 powers of two", "Convert it."
        )
    if scale_rows is not None:
        require_shape("scale_rows", scale_rows, weight.shape[0])
        if scale_rows.dtype != torch.int32:
            raise InvalidInputError(
                f"scale_rows of {scale_rows.dtype}", "it is int32", "Convert it."
            )


def _dequantized_linear_cpu(
    x: torch.Tensor,
    weight: torch.Tensor,
    scale: torch.Tensor,
    scale_rows: torch.Tensor | None,
    columns: int,
    first_column: int,
    codes: str,
) -> torch.Tensor:
    kernels = _cpu.usable(x, weight, scale, scale_rows)
    if kernels is not None and kernels.supports(x, weight, scale):
        return kernels.dequantized_linear(
            x, weight, scale, scale_rows, columns, first_column, codes
        )
    return reference.dequantized_linear(x, weight, scale, scale_rows, columns, first_column, codes)


_DEQUANTIZED_LINEAR = declare(
    __name__,
    "dequantized_linear(Tensor x, Tensor weight, Tensor scale, Tensor? scale_rows, int columns, "
    "int first_column, str codes) -> Tensor",
    npu=("torch",),
    fake=lambda x, weight, *others: x.new_empty((x.shape[0], weight.shape[0])),
    cpu=_dequantized_linear_cpu,
)
