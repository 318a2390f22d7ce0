"""Definitions of the grouped products: one dense product per group that has rows."""

from __future__ import annotations

import torch
from ascend_ops_core.ops.linear import linear
from ascend_ops_core.ops.quantization.blocks import COLUMNS
from ascend_ops_core.ops.quantization.blocks import reference as blocks
from ascend_ops_core.ops.quantization.mx import reference as mx
from ascend_ops_core.ops.swiglu_quant import reference as swiglu

from ascend_fused_moe.ops.grouped_mlp.formats import unpacked_int4


def grouped_matmul(
    x: torch.Tensor,
    weight: torch.Tensor,
    groups: torch.Tensor,
    cumulative: bool,
    bias: torch.Tensor | None,
) -> torch.Tensor:
    """See :func:`ascend_fused_moe.ops.grouped_mlp.grouped_matmul`."""
    out = torch.empty((x.shape[0], weight.shape[1]), dtype=x.dtype, device=x.device)
    for group, first, last in _spans(groups, cumulative):
        rows = x[first:last]
        if bias is None:
            out[first:last] = linear(rows, weight[group])
        else:
            out[first:last] = linear(rows.float(), weight[group].float()) + bias[group].float()
    return out


def grouped_matmul_quantized(
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
    """See :func:`ascend_fused_moe.ops.grouped_mlp.grouped_matmul_quantized`."""
    out = torch.empty((x.shape[0], weight.shape[1]), dtype=dtype, device=x.device)
    for group, first, last in _spans(groups, cumulative):
        scale = None if x_scale is None else x_scale[first:last]
        y = linear(
            dequantized_rows(x[first:last], scale, rows),
            dequantized_weight(weight[group], weight_scale[group], weights),
        )
        out[first:last] = y if bias is None else y + bias[group].float()
    return out


def grouped_matmul_int32(
    x: torch.Tensor, weight: torch.Tensor, groups: torch.Tensor, cumulative: bool
) -> torch.Tensor:
    """See :func:`ascend_fused_moe.ops.grouped_mlp.grouped_matmul_int32`."""
    out = torch.empty((x.shape[0], weight.shape[1]), dtype=torch.int32, device=x.device)
    for group, first, last in _spans(groups, cumulative):
        # Sums of products of int8 are exact in float64 up to 2^39 of them.
        out[first:last] = (x[first:last].double() @ weight[group].double().T).int()
    return out


def grouped_matmul_swiglu_quant(
    x: torch.Tensor,
    x_scale: torch.Tensor,
    weight: torch.Tensor,
    weight_scale: torch.Tensor,
    groups: torch.Tensor,
    cumulative: bool,
) -> tuple[torch.Tensor, torch.Tensor]:
    """See :func:`ascend_fused_moe.ops.grouped_mlp.grouped_matmul_swiglu_quant`."""
    sums = grouped_matmul_int32(x, weight.transpose(1, 2), groups, cumulative)
    return swiglu.dequant_swiglu_quant(sums, weight_scale, x_scale, groups, cumulative, None)


def dequantized_rows(x: torch.Tensor, scale: torch.Tensor | None, name: str) -> torch.Tensor:
    """Rows ``[M, K]`` in float32."""
    if scale is None:
        return x.float()
    if name == "int8":
        return x.float() * scale[:, None]
    return _dequantized(x, scale, name, 1)


def dequantized_weight(weight: torch.Tensor, scale: torch.Tensor, name: str) -> torch.Tensor:
    """The weight ``[N, K]`` of one group in float32."""
    if name == "int8":
        return weight.float() * scale.float()[:, None]
    if name == "int4":
        values = unpacked_int4(weight).float()
        per_group = scale.float().view(weight.shape[0], -1)
        share = values.shape[1] // per_group.shape[1]
        return values * per_group.repeat_interleave(share, dim=1)
    return _dequantized(weight, scale, name, COLUMNS)


def _dequantized(q: torch.Tensor, scale: torch.Tensor, name: str, rows: int) -> torch.Tensor:
    if name == "fp8_block":
        return blocks.block_dequantize(q, scale, rows, torch.float32)
    dequantize = {"mxfp8": mx.mxfp8_dequantize, "mxfp4": mx.mxfp4_dequantize}[name]
    return dequantize(q, scale, torch.float32)


def _spans(groups: torch.Tensor, cumulative: bool) -> list[tuple[int, int, int]]:
    """Group, first row and the row behind the last, for each group with rows."""
    ends = (groups if cumulative else groups.cumsum(0)).tolist()
    starts = [0, *ends[:-1]]
    found = zip(range(len(ends)), starts, ends, strict=True)
    return [(group, first, last) for group, first, last in found if last > first]
