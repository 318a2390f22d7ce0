"""SwiGLU that quantises its result."""

from __future__ import annotations

import torch
from torch.nn import functional as F

from ascend_ops_core.testing.npu_references.limits import (
    FLOATS,
    HALVES,
    require,
    require_dtype,
    require_rank,
)
from ascend_ops_core.testing.npu_references.quantization import quantized_rows
from ascend_ops_core.testing.npu_references.registry import reference
from ascend_ops_core.testing.npu_references.rounding import narrowed

_MAX_WIDTH = 8192
_MAX_GROUPED_H = 10496


@reference("npu_swiglu_quant", documented=("A2", "A3"))
def npu_swiglu_quant(
    x: torch.Tensor,
    *,
    smooth_scales: torch.Tensor | None = None,
    offsets: torch.Tensor | None = None,
    group_index: torch.Tensor | None = None,
    activate_left: bool = False,
    quant_mode: int = 0,
    group_list_type: int = 0,
    dst_type: torch.dtype | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """SwiGLU of the halves of x's last dimension, then int8 with given (0) or row scales (1).

    ``smooth_scales`` float32 [G, N] or [G] multiply the activation, one row for each group of rows;
    ``group_index`` int32 [G] holds ends (``group_list_type`` 0) or sizes (1) of groups. Returns
    int8 [..., N] and float32 scales [...].

    Limits: float16, bfloat16, float32; more than 1 dimension; last size even and at most 8192.

    Assumed: without ``group_index`` G is 1; ``quant_mode`` 0 gives ``round(act * smooth + offset)``
    and undefined scales, here zero; rows behind the last group are undefined, here zero; int4 is
    not modelled.
    """
    op = "npu_swiglu_quant"
    require_dtype(op, "x", x, FLOATS)
    require(x.dim() > 1, op, f"x of {x.dim()} dimensions", "more than 1")
    width = x.shape[-1]
    require(width % 2 == 0 and width <= _MAX_WIDTH, op, f"last size {width}", "even, at most 8192")
    require_dtype(op, "smooth_scales", smooth_scales, (torch.float32,))
    require_dtype(op, "offsets", offsets, (torch.float32,))
    require_dtype(op, "group_index", group_index, (torch.int32,))
    require(dst_type in (None, torch.int8), op, f"dst_type={dst_type}", "int8 is modelled")
    require(quant_mode in (0, 1), op, f"quant_mode={quant_mode}", "0 or 1")
    activated = _swiglu(x.float(), activate_left).flatten(0, -2)
    rows = activated.shape[0]
    sizes = _group_sizes(op, group_index, group_list_type, rows)
    if smooth_scales is not None:
        activated = activated * _by_row(op, smooth_scales, sizes, rows)
    if quant_mode == 1:
        require(offsets is None, op, "offsets", "none with quant_mode 1")
        y, scale = quantized_rows(activated, torch.int8)
    else:
        require(smooth_scales is not None, op, "no smooth_scales", "quant_mode 0 needs them")
        if offsets is not None:
            activated = activated + _by_row(op, offsets, sizes, rows)
        y, scale = narrowed(activated, torch.int8), torch.zeros(rows)
    used = int(sizes.sum())
    y[used:] = 0
    scale[used:] = 0
    return y.view(*x.shape[:-1], width // 2), scale.view(x.shape[:-1])


@reference("npu_dequant_swiglu_quant", documented=("A2", "A3"))
def npu_dequant_swiglu_quant(
    x: torch.Tensor,
    *,
    weight_scale: torch.Tensor | None = None,
    activation_scale: torch.Tensor | None = None,
    bias: torch.Tensor | None = None,
    quant_scale: torch.Tensor | None = None,
    quant_offset: torch.Tensor | None = None,
    group_index: torch.Tensor | None = None,
    activate_left: bool = False,
    quant_mode: int = 0,
    dst_type: int | None = None,
    round_mode: int | None = None,
    activate_dim: int | None = None,
    swiglu_mode: int = 0,
    clamp_limit: float = 7.0,
    glu_alpha: float = 1.702,
    glu_bias: float = 1.0,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Dequantise int32 [T, 2H] (or take bfloat16), SwiGLU, quantise to int8 [T, H] with scales [T].

    int32: ``(x + bias) * weight_scale * activation_scale`` with weight_scale float32 [groups, 2H]
    (one row for each group of tokens, ``group_index`` int64 of their sizes) and activation_scale
    float32 [T]. ``quant_scale`` [groups, H] multiplies the activation.

    Limits: 2 dimensions; int32 needs weight_scale and activation_scale, others must not have them
    nor a bias; with group_index quant_mode is 1, no bias, no offset, H at most 10496 and a multiple
    of 64; the sum of group_index at most T.

    Assumed: float16 is taken as the constraints say, though the argument's text does not; rows
    behind the groups are undefined, here zero; ``swiglu_mode`` 1 is not modelled, since whether it
    interleaves is not documented; quant_mode 0 gives ``round(act * quant_scale + quant_offset)``
    and undefined scales, here zero.
    """
    op = "npu_dequant_swiglu_quant"
    require_dtype(op, "x", x, (torch.int32, *HALVES))
    require_rank(op, "x", x, 2, 2)
    rows, width = x.shape
    require(width % 2 == 0, op, f"last size {width}", "even")
    require(swiglu_mode == 0, op, f"swiglu_mode={swiglu_mode}", "0 is modelled")
    usual = dst_type in (None, 1) and round_mode in (None, 0) and activate_dim in (None, -1, 1)
    require(usual, op, "dst_type, round_mode or activate_dim", "int8, rint, -1 are modelled")
    require_dtype(op, "group_index", group_index, (torch.int64,))
    if group_index is not None:
        h = width // 2
        require(h <= _MAX_GROUPED_H and h % 64 == 0, op, f"H={h}", "at most 10496, in 64s")
        plain = quant_mode == 1 and bias is None and quant_offset is None
        require(plain, op, "group_index with bias, offset or quant_mode 0", "quant_mode 1 alone")
    sizes = _group_sizes(op, group_index, 1, rows)
    wide = x.float()
    if x.dtype == torch.int32:
        require_dtype(op, "weight_scale", weight_scale, (torch.float32,))
        require_dtype(op, "activation_scale", activation_scale, (torch.float32,))
        require_dtype(op, "bias", bias, (torch.int32,))
        given = weight_scale is not None and activation_scale is not None
        require(given, op, "int32 x without its scales", "weight_scale and activation_scale")
        assert weight_scale is not None
        assert activation_scale is not None
        summed = x if bias is None else x + bias
        wide = summed.float() * _by_row(op, weight_scale, sizes, rows) * activation_scale[:, None]
    else:
        bare = weight_scale is None and activation_scale is None and bias is None
        require(bare, op, f"scales or bias beside x of {x.dtype}", "only int32 has them")
    activated = _swiglu(wide, activate_left)
    if quant_scale is not None:
        activated = activated * _by_row(op, quant_scale.float(), sizes, rows)
    if quant_mode == 1:
        y, scale = quantized_rows(activated, torch.int8)
    else:
        require(quant_scale is not None, op, "no quant_scale", "quant_mode 0 needs it")
        shifted = activated if quant_offset is None else activated + quant_offset.float()
        y, scale = narrowed(shifted, torch.int8), torch.zeros(rows)
    used = int(sizes.sum())
    y[used:] = 0
    scale[used:] = 0
    return y, scale


def _swiglu(wide: torch.Tensor, activate_left: bool) -> torch.Tensor:
    left, right = wide.chunk(2, -1)
    return F.silu(left) * right if activate_left else F.silu(right) * left


def _group_sizes(op: str, index: torch.Tensor | None, kind: int, rows: int) -> torch.Tensor:
    """Sizes of the groups, int64; one group of all rows without an index."""
    if index is None:
        return torch.tensor([rows])
    sizes = index.long() if kind == 1 else index.long().diff(prepend=torch.zeros(1).long())
    sound = bool((sizes >= 0).all()) and int(sizes.sum()) <= rows
    require(sound, op, f"group_index={index.tolist()}", f"sizes >= 0, at most {rows} rows")
    return sizes


def _by_row(op: str, values: torch.Tensor, sizes: torch.Tensor, rows: int) -> torch.Tensor:
    """Give each row the values of its group: [G, N] or [G] to [rows, N or 1]; 1 behind the last."""
    table = values if values.dim() == 2 else values[:, None]
    fits = table.shape[0] == sizes.shape[0]
    require(
        fits, op, f"{table.shape[0]} rows of scales", f"one for each of {sizes.shape[0]} groups"
    )
    spread = table.repeat_interleave(sizes, 0)
    return torch.cat((spread, spread.new_ones(rows - spread.shape[0], table.shape[1])))
