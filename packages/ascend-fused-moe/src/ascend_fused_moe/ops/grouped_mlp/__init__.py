"""Products of rows with the weight of their group, the rows lying in the order of the groups.

The two halves of an expert network are such products. Every call takes a
:class:`~ascend_fused_moe.group_list.GroupList`, so that counts are never taken for running sums.

On an NPU torch_npu's grouped products compute them, where their documented limits hold, and the
product of floats has a Triton kernel for where they do not. Elsewhere the definition runs there: it
reads the group list on the host, so it waits for the device and cannot be part of a captured graph.
"""

from __future__ import annotations

import torch
from ascend_ops_core.cpu_kernels import CpuKernels
from ascend_ops_core.errors import InvalidInputError
from ascend_ops_core.registry import declare

from ascend_fused_moe.group_list import GroupList, GroupListKind
from ascend_fused_moe.ops.grouped_mlp import reference
from ascend_fused_moe.ops.grouped_mlp.formats import (
    FORMATS,
    TAKES_ROWS,
    check_rows,
    check_weight,
)

_cpu = CpuKernels("ascend_fused_moe.ops.grouped_mlp.cpu")

__all__ = [
    "grouped_matmul",
    "grouped_matmul_int32",
    "grouped_matmul_quantized",
    "grouped_matmul_swiglu_quant",
]

_RESULTS = (torch.float32, torch.bfloat16, torch.float16)


def grouped_matmul(
    x: torch.Tensor,
    weight: torch.Tensor,
    group_list: GroupList,
    bias: torch.Tensor | None = None,
) -> torch.Tensor:
    """``x[rows of g] @ weight[g].T + bias[g]`` for every group ``g``.

    Args:
        x: ``[M, K]``, float32, bfloat16 or float16; ``M`` may be 0.
        weight: ``[G, N, K]`` of the same dtype; the weight of a group without rows is not read.
        group_list: ``G`` groups that have ``M`` rows together.
        bias: ``[G, N]``, any float dtype, or None.

    Returns:
        ``[M, N]`` in ``x.dtype``, accumulated in float32.

    Raises:
        InvalidInputError: shapes or dtypes that do not belong together, or another number of
            groups; on a CPU also another number of rows.
    """
    if weight.dim() != 3 or x.dim() != 2 or weight.shape[2] != x.shape[1]:
        raise InvalidInputError(
            f"x {list(x.shape)} and weight {list(weight.shape)}",
            "expected [M, K] and [G, N, K]",
            "Check the layout of the stacked weights.",
        )
    if x.dtype not in _RESULTS or weight.dtype != x.dtype:
        raise InvalidInputError(
            f"x of {x.dtype} and weight of {weight.dtype}",
            "both have one float dtype",
            "Use grouped_matmul_quantized for quantised weights.",
        )
    _check_groups(x, weight, group_list, bias)
    if x.shape[0] == 0:
        return x.new_empty(0, weight.shape[1])
    result: torch.Tensor = _GROUPED_MATMUL(x, weight, *_given(group_list), bias)
    return result


def grouped_matmul_quantized(
    x: torch.Tensor,
    x_scale: torch.Tensor | None,
    weight: torch.Tensor,
    weight_scale: torch.Tensor,
    group_list: GroupList,
    *,
    rows: str,
    weights: str,
    dtype: torch.dtype,
    bias: torch.Tensor | None = None,
) -> torch.Tensor:
    """:func:`grouped_matmul` of what quantised rows and weights stand for.

    Args:
        x: ``[M, K]`` or packed, stored as ``rows`` says; ``M`` may be 0.
        x_scale: of the rows; None for float rows.
        weight: ``[G, N, K]`` or packed, stored as ``weights`` says.
        weight_scale: of the weights.
        group_list: ``G`` groups that have ``M`` rows together.
        rows: a format of :mod:`ascend_fused_moe.ops.grouped_mlp.formats`.
        weights: a format of the same place.
        dtype: of the result: float32, bfloat16 or float16.
        bias: ``[G, N]``, any float dtype, or None.

    Returns:
        ``[M, N]`` in ``dtype``, accumulated in float32.

    Raises:
        InvalidInputError: values and scales that are not stored as their format says, formats
            that do not go together, or groups as in :func:`grouped_matmul`.
    """
    if weights not in TAKES_ROWS or rows not in TAKES_ROWS[weights]:
        taken = ", ".join(f"{w} with {' or '.join(r)}" for w, r in TAKES_ROWS.items())
        raise InvalidInputError(
            f"weights={weights!r} with rows={rows!r}",
            f"products exist of {taken}",
            "Quantise the rows to a format that goes with the weights.",
        )
    if dtype not in _RESULTS:
        raise InvalidInputError(
            f"dtype {dtype}", "results are float32, bfloat16 or float16", "Choose one."
        )
    if x.dim() != 2 or weight.dim() != 3:
        raise InvalidInputError(
            f"x {list(x.shape)} and weight {list(weight.shape)}",
            "expected [M, K] and [G, N, K]",
            "Check the layout of the stacked weights.",
        )
    columns = weight.shape[2] * FORMATS[weights].per_byte
    x_scale = check_rows(x, x_scale, rows, columns)
    weight_scale = check_weight(weight, weight_scale, weights, columns)
    _check_groups(x, weight, group_list, bias)
    if x.shape[0] == 0:
        return torch.empty((0, weight.shape[1]), dtype=dtype, device=x.device)
    result: torch.Tensor = _GROUPED_MATMUL_QUANTIZED(
        x, x_scale, weight, weight_scale, *_given(group_list), bias, rows, weights, dtype
    )
    return result


def grouped_matmul_int32(
    x: torch.Tensor, weight: torch.Tensor, group_list: GroupList
) -> torch.Tensor:
    """The exact sums of a grouped product of int8, for an operator that scales them itself.

    Args:
        x: ``[M, K]`` int8; ``M`` may be 0. ``K`` is at most 131072, so that sums fit.
        weight: ``[G, N, K]`` int8.
        group_list: ``G`` groups that have ``M`` rows together.

    Returns:
        ``[M, N]`` int32.

    Raises:
        InvalidInputError: another dtype or shape, or groups as in :func:`grouped_matmul`.
    """
    _check_int8(x, weight, 2)
    _check_groups(x, weight, group_list, None)
    if x.shape[0] == 0:
        return torch.empty((0, weight.shape[1]), dtype=torch.int32, device=x.device)
    result: torch.Tensor = _GROUPED_MATMUL_INT32(x, weight, *_given(group_list))
    return result


def grouped_matmul_swiglu_quant(
    x: torch.Tensor,
    x_scale: torch.Tensor,
    weight: torch.Tensor,
    weight_scale: torch.Tensor,
    group_list: GroupList,
) -> tuple[torch.Tensor, torch.Tensor]:
    """A grouped product of int8, SwiGLU without a limit, and rows of int8 again, in one pass.

    Args:
        x: ``[M, K]`` int8; ``M`` may be 0.
        x_scale: ``[M]`` float32.
        weight: ``[G, K, 2 * I]`` int8, gate columns before up columns; on an NPU in the layout
            FRACTAL_NZ, which is not visible here.
        weight_scale: ``[G, 2 * I]`` float32.
        group_list: ``G`` groups that have ``M`` rows together.

    Returns:
        ``[M, I]`` int8 and ``[M]`` float32, as
        :func:`ascend_ops_core.ops.swiglu_quant.dequant_swiglu_quant` of the exact sums gives them.

    Raises:
        InvalidInputError: another dtype or shape, or groups as in :func:`grouped_matmul`.
    """
    _check_int8(x, weight, 1)
    outputs = weight.shape[2]
    wanted = (
        ("x_scale", x_scale, [x.shape[0]]),
        ("weight_scale", weight_scale, [weight.shape[0], outputs]),
    )
    for name, scale, shape in wanted:
        if scale.dtype != torch.float32 or list(scale.shape) != shape:
            raise InvalidInputError(
                f"{name} of {scale.dtype} and shape {list(scale.shape)}",
                f"it is float32 {shape}",
                "Pass the scales of the rows and of the output channels.",
            )
    if outputs % 2 or not outputs:
        raise InvalidInputError(
            f"{outputs} output channels", "gate and up need equal halves", "Concatenate them."
        )
    _check_groups(x, weight, group_list, None)
    if x.shape[0] == 0:
        return _pair(x, weight)
    values, scales = _GROUPED_MATMUL_SWIGLU_QUANT(
        x, x_scale, weight, weight_scale, *_given(group_list)
    )
    return values, scales


def _grouped_matmul_quantized_cpu(
    x: torch.Tensor,
    x_scale: torch.Tensor | None,
    weight: torch.Tensor,
    weight_scale: torch.Tensor,
    groups: torch.Tensor,
    cumulative: bool,
    bias: torch.Tensor | None,
    rows: str,
    weights: str,
    dtype: torch.dtype,
) -> torch.Tensor:
    kernels = _cpu.usable(x, weight, weight_scale, bias)
    if kernels is not None and kernels.supports(x, weight, weight_scale, rows, dtype):
        return kernels.grouped_matmul_quantized(
            x, weight, weight_scale, groups, cumulative, bias, weights, dtype
        )
    return reference.grouped_matmul_quantized(
        x, x_scale, weight, weight_scale, groups, cumulative, bias, rows, weights, dtype
    )


_MOST_INT8_TERMS = 131072


def _check_int8(x: torch.Tensor, weight: torch.Tensor, inner: int) -> None:
    shaped = x.dim() == 2 and weight.dim() == 3 and weight.shape[inner] == x.shape[1]
    if not shaped or x.dtype != torch.int8 or weight.dtype != torch.int8:
        layout = "[G, N, K]" if inner == 2 else "[G, K, N]"
        raise InvalidInputError(
            f"x of {x.dtype} {list(x.shape)} and weight of {weight.dtype} {list(weight.shape)}",
            f"expected int8 [M, K] and {layout}",
            "Check the layout of the stacked weights.",
        )
    if x.shape[1] > _MOST_INT8_TERMS:
        raise InvalidInputError(
            f"rows of {x.shape[1]} columns",
            f"sums of more than {_MOST_INT8_TERMS} products of int8 do not fit int32",
            "Split the rows.",
        )


def _check_groups(
    x: torch.Tensor, weight: torch.Tensor, group_list: GroupList, bias: torch.Tensor | None
) -> None:
    group_list.check(x.shape[0], weight.shape[0])
    if bias is not None and bias.shape != weight.shape[:2]:
        raise InvalidInputError(
            f"bias of shape {list(bias.shape)}",
            f"it is {list(weight.shape[:2])}",
            "Pass one row of biases for each group.",
        )


def _given(group_list: GroupList) -> tuple[torch.Tensor, bool]:
    return group_list.values, group_list.kind is GroupListKind.CUMULATIVE


def _result(x: torch.Tensor, weight: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    return torch.empty((x.shape[0], weight.shape[1]), dtype=dtype, device=x.device)


def _pair(x: torch.Tensor, weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    rows = x.shape[0]
    return (
        torch.empty((rows, weight.shape[2] // 2), dtype=torch.int8, device=x.device),
        torch.empty(rows, dtype=torch.float32, device=x.device),
    )


_GROUPED_MATMUL = declare(
    __name__,
    "grouped_matmul(Tensor x, Tensor weight, Tensor groups, bool cumulative, Tensor? bias)"
    " -> Tensor",
    npu=("torch_npu", "triton", "torch"),
    fake=lambda x, weight, *others: _result(x, weight, x.dtype),
)
_GROUPED_MATMUL_QUANTIZED = declare(
    __name__,
    "grouped_matmul_quantized(Tensor x, Tensor? x_scale, Tensor weight, Tensor weight_scale,"
    " Tensor groups, bool cumulative, Tensor? bias, str rows, str weights, ScalarType dtype)"
    " -> Tensor",
    npu=("torch_npu", "torch"),
    fake=lambda x, x_scale, weight, *others: _result(x, weight, others[-1]),
    cpu=_grouped_matmul_quantized_cpu,
)
_GROUPED_MATMUL_INT32 = declare(
    __name__,
    "grouped_matmul_int32(Tensor x, Tensor weight, Tensor groups, bool cumulative) -> Tensor",
    npu=("torch_npu", "torch"),
    fake=lambda x, weight, *others: _result(x, weight, torch.int32),
)
_GROUPED_MATMUL_SWIGLU_QUANT = declare(
    __name__,
    "grouped_matmul_swiglu_quant(Tensor x, Tensor x_scale, Tensor weight, Tensor weight_scale,"
    " Tensor groups, bool cumulative) -> (Tensor, Tensor)",
    npu=("torch_npu", "torch"),
    fake=lambda x, x_scale, weight, *others: _pair(x, weight),
)
