"""SwiGLU and the quantisation of its rows in one pass, for the experts of a mixture.

vLLM 0.27.1 has no layer for it: its experts call an activation and a quantisation of their own, and
its fusion of both is a pass for CUDA. The experts of this stack call these operators.
"""

from __future__ import annotations

import torch

from ascend_ops_core.errors import InvalidInputError
from ascend_ops_core.ops.activation import check_limit
from ascend_ops_core.registry import declare

__all__ = ["dequant_swiglu_quant", "swiglu_quant"]


def swiglu_quant(
    gate_up: torch.Tensor,
    groups: torch.Tensor | None = None,
    cumulative: bool = False,
    limit: float | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """``silu(gate) * up`` of every row inside the groups, quantised to int8 by its own scale.

    A row's scale is ``max |y| / 127`` and its integers are ``y / scale`` rounded to nearest, ties
    to even; a row of zeros has scale 0. The limit acts before the quantisation, as in
    :func:`ascend_ops_core.ops.activation.silu_and_mul_with_clamp`.

    Args:
        gate_up: ``[T, 2 * I]``, float32, bfloat16 or float16, the gate in the first half. ``T``
            may be 0.
        groups: ``[G]`` int64, what a grouped matrix product was given: the rows of each group, or
            their running sums. Only the first rows, as many as the groups have together, are
            read; they are at most ``T``. None takes all rows.
        cumulative: ``groups`` holds running sums.
        limit: positive bound of the gate from above and of ``up`` on both sides. None or 0
            switches it off.

    Returns:
        ``[T, I]`` int8 and ``[T]`` float32. Rows behind the groups have integers and scale 0.

    Raises:
        InvalidInputError: a negative limit, an odd last axis, ``groups`` that is not ``[G]`` int64
            or, on a CPU, asks for more than ``T`` rows or has a negative or falling entry.
    """
    check_limit(limit)
    if gate_up.dim() != 2 or gate_up.shape[1] % 2 or gate_up.shape[1] == 0:
        raise InvalidInputError(
            f"gate_up of shape {list(gate_up.shape)}",
            "it is [T, 2 * I] with equal halves of at least one channel",
            "Concatenate gate and up projections of the same width.",
        )
    if groups is not None:
        _check_groups(groups, cumulative, gate_up.shape[0])
    result: tuple[torch.Tensor, torch.Tensor] = _SWIGLU_QUANT(gate_up, groups, cumulative, limit)
    return result


def dequant_swiglu_quant(
    gate_up: torch.Tensor,
    weight_scale: torch.Tensor,
    activation_scale: torch.Tensor,
    groups: torch.Tensor | None = None,
    cumulative: bool = False,
    limit: float | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """:func:`swiglu_quant` of the int32 result of a product of int8 matrices.

    ``gate_up[t] * weight_scale[g] * activation_scale[t]``, ``g`` being the group of row ``t``, is
    computed in float32 and goes on as there.

    Args:
        gate_up: ``[T, 2 * I]`` int32, the gate in the first half. ``T`` may be 0.
        weight_scale: ``[G, 2 * I]`` float32, a scale for each output channel of each group's
            weight; ``[1, 2 * I]`` without ``groups``.
        activation_scale: ``[T]`` float32; behind the groups it is not used.
        groups: as in :func:`swiglu_quant`.
        cumulative: as in :func:`swiglu_quant`.
        limit: as in :func:`swiglu_quant`.

    Returns:
        ``[T, I]`` int8 and ``[T]`` float32. Rows behind the groups have integers and scale 0.

    Raises:
        InvalidInputError: as :func:`swiglu_quant`, another dtype, or scales of another shape.

    Source: torch_npu's ``npu_dequant_swiglu_quant``, the limit that of DeepSeek-V4.
    """
    check_limit(limit)
    if gate_up.dim() != 2 or gate_up.shape[1] % 2 or gate_up.shape[1] == 0:
        raise InvalidInputError(
            f"gate_up of shape {list(gate_up.shape)}",
            "it is [T, 2 * I] with equal halves of at least one channel",
            "Concatenate gate and up projections of the same width.",
        )
    if groups is not None:
        _check_groups(groups, cumulative, gate_up.shape[0])
    count = 1 if groups is None else groups.shape[0]
    wanted = (
        ("gate_up", gate_up, torch.int32, tuple(gate_up.shape)),
        ("weight_scale", weight_scale, torch.float32, (count, gate_up.shape[1])),
        ("activation_scale", activation_scale, torch.float32, (gate_up.shape[0],)),
    )
    for name, value, dtype, shape in wanted:
        if value.dtype != dtype or tuple(value.shape) != shape:
            raise InvalidInputError(
                f"{name} of {value.dtype} and shape {list(value.shape)}",
                f"it is {dtype} {list(shape)}",
                "Pass what the quantised product was given and returned.",
            )
    result: tuple[torch.Tensor, torch.Tensor] = _DEQUANT_SWIGLU_QUANT(
        gate_up, weight_scale, activation_scale, groups, cumulative, limit
    )
    return result


def _check_groups(groups: torch.Tensor, cumulative: bool, rows: int) -> None:
    if groups.dtype != torch.int64 or groups.dim() != 1 or groups.numel() == 0:
        raise InvalidInputError(
            f"groups of {groups.dtype} and shape {list(groups.shape)}",
            "a group list is [G] int64 with at least one group",
            "Pass the group list of the grouped matrix product.",
        )
    if groups.device.type != "cpu":  # reading it would wait for the device
        return
    ends = groups if cumulative else groups.cumsum(0)
    falling = bool((ends.diff(prepend=ends.new_zeros(1)) < 0).any())
    if falling or int(ends[-1]) > rows:
        kind = "running sums" if cumulative else "counts"
        raise InvalidInputError(
            f"groups={groups.tolist()} as {kind}",
            f"groups have 0 or more rows, and together at most the {rows} of gate_up",
            "Say with cumulative= which kind of list it is.",
        )


def _fake(
    gate_up: torch.Tensor, groups: torch.Tensor | None, cumulative: bool, limit: float | None
) -> tuple[torch.Tensor, torch.Tensor]:
    rows, width = gate_up.shape
    return (
        torch.empty((rows, width // 2), dtype=torch.int8, device=gate_up.device),
        torch.empty(rows, dtype=torch.float32, device=gate_up.device),
    )


_SWIGLU_QUANT = declare(
    __name__,
    "swiglu_quant(Tensor gate_up, Tensor? groups, bool cumulative, float? limit)"
    " -> (Tensor, Tensor)",
    npu=("torch_npu", "triton"),
    fake=_fake,
)
_DEQUANT_SWIGLU_QUANT = declare(
    __name__,
    "dequant_swiglu_quant(Tensor gate_up, Tensor weight_scale, Tensor activation_scale,"
    " Tensor? groups, bool cumulative, float? limit) -> (Tensor, Tensor)",
    npu=("torch_npu", "triton"),
    fake=lambda gate_up, weight_scale, activation_scale, groups, cumulative, limit: _fake(
        gate_up, groups, cumulative, limit
    ),
)
