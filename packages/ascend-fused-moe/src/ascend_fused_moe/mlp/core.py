"""The pass itself."""

from __future__ import annotations

from dataclasses import replace

import torch
from ascend_ops_core.devices import current_facts
from ascend_ops_core.ops.quantization import (
    block_quantize,
    dynamic_quantize,
    mxfp4_quantize,
    mxfp8_quantize,
)
from ascend_ops_core.ops.swiglu_quant import dequant_swiglu_quant, swiglu_quant

from ascend_fused_moe.experts_mlp import StackedExpertsMlp
from ascend_fused_moe.group_list import GroupListKind
from ascend_fused_moe.mlp.activation import Activation, ActivationKind
from ascend_fused_moe.mlp.data import MoEMlpComputeInput, MoEWeights
from ascend_fused_moe.mlp.plan import MlpPlan, plan_mlp
from ascend_fused_moe.ops.grouped_mlp import (
    grouped_matmul,
    grouped_matmul_int32,
    grouped_matmul_quantized,
    grouped_matmul_swiglu_quant,
)
from ascend_fused_moe.quant_params import MoEQuantParams

__all__ = [
    "is_clipped_swiglu",
    "is_plain_swiglu",
    "quant_apply_mlp",
    "unified_apply_mlp",
    "unquant_apply_mlp",
]


def unified_apply_mlp(given: MoEMlpComputeInput) -> torch.Tensor:
    """Run every row through its expert: ``w2 @ activation(w13 @ row + w13_bias) + w2_bias``.

    Rows behind the groups are neither read nor written on a CPU, where they come out as 0; on an
    NPU the last expert takes them, since torch_npu's products want all rows in a group, and what
    comes of them is not to be read.

    Args:
        given: from :func:`ascend_fused_moe.mlp.build_mlp_compute_input`.

    Returns:
        ``[R, H]`` in ``given.dtype``; sums in float32, or exact where they are of integers.
    """
    rows = given.rows.shape[0]
    apply = quant_apply_mlp if given.quant.is_quant else unquant_apply_mlp
    if given.rows.device.type != "cpu":
        return apply(replace(given, group_list=given.group_list.with_all(rows)))
    ends = given.group_list.cumulative().values
    used = int(ends[-1]) if ends.numel() else 0
    if used == rows:
        return apply(given)
    scale = None if given.rows_scale is None else given.rows_scale[:used]
    lora = None if given.lora is None else given.lora.first(used)
    part = apply(replace(given, rows=given.rows[:used], rows_scale=scale, lora=lora))
    return torch.cat([part, part.new_zeros(rows - used, part.shape[1])])


def unquant_apply_mlp(given: MoEMlpComputeInput) -> torch.Tensor:
    """:func:`unified_apply_mlp` of weights that are not quantised, all rows being in a group."""
    weights = given.weights
    plain = is_plain_swiglu(weights, given.quant, given.activation) and given.lora is None
    if plain and given.rows.device.type == "cpu":
        # One kernel there, which reads the weights of an expert once.
        stacked = StackedExpertsMlp(weights.w13, weights.w2, given.activation.limit)
        return stacked(given.rows, given.group_list)
    gate_up = grouped_matmul(given.rows, weights.w13, given.group_list, weights.w13_bias)
    hidden = given.activation(_with_w13_lora(gate_up, given))
    out = grouped_matmul(hidden, weights.w2, given.group_list, weights.w2_bias)
    return _with_w2_lora(out, hidden, given)


def quant_apply_mlp(given: MoEMlpComputeInput, plan: MlpPlan | None = None) -> torch.Tensor:
    """:func:`unified_apply_mlp` of quantised weights, all rows being in a group.

    Args:
        given: the pass.
        plan: how it is made; None takes :func:`ascend_fused_moe.mlp.plan_mlp`'s choice.
    """
    if plan is None:
        on_cpu = given.rows.device.type == "cpu"
        plan = plan_mlp(given, None if on_cpu else current_facts())
    rows, scale = given.rows, given.rows_scale
    if scale is None:
        rows, scale = _quantized(rows, given)
    weights = given.weights
    assert weights.w2_scale is not None
    hidden: torch.Tensor | None = None
    if given.lora is None:
        second, scale = _STEPS[plan.chosen](given, rows, scale)
    else:
        hidden = given.activation(_with_w13_lora(_gate_up(given, rows, scale), given))
        second, scale = _quantized(hidden, given)
    out = grouped_matmul_quantized(
        second,
        scale,
        weights.w2,
        weights.w2_scale,
        given.group_list,
        rows=given.quant.rows,
        weights=given.quant.weights,
        dtype=given.dtype,
        bias=weights.w2_bias,
    )
    return out if hidden is None else _with_w2_lora(out, hidden, given)


def _with_w13_lora(gate_up: torch.Tensor, given: MoEMlpComputeInput) -> torch.Tensor:
    if given.lora is None:
        return gate_up
    interleaved = given.activation.kind is ActivationKind.SWIGLU_OAI
    return gate_up + given.lora.of_w13(given.rows, given.group_list, interleaved)


def _with_w2_lora(
    out: torch.Tensor, hidden: torch.Tensor, given: MoEMlpComputeInput
) -> torch.Tensor:
    return out if given.lora is None else out + given.lora.of_w2(hidden, given.group_list)


def is_plain_swiglu(weights: MoEWeights, quant: MoEQuantParams, activation: Activation) -> bool:
    """Whether :func:`ascend_fused_moe.ops.experts.fused_experts` computes experts."""
    return _is_plain(weights, quant) and activation.kind is ActivationKind.SWIGLU


def is_clipped_swiglu(weights: MoEWeights, quant: MoEQuantParams, activation: Activation) -> bool:
    """Whether it does with the activation's alpha and bias."""
    return _is_plain(weights, quant) and activation.kind is ActivationKind.CLIPPED_SWIGLU


def _is_plain(weights: MoEWeights, quant: MoEQuantParams) -> bool:
    biased = weights.w13_bias is not None or weights.w2_bias is not None
    return not quant.is_quant and not biased


_Rows = tuple[torch.Tensor, torch.Tensor | None]


def _quantized(x: torch.Tensor, given: MoEMlpComputeInput) -> _Rows:
    name = given.quant.rows
    if name == "float":
        return x, None
    if name == "int8":
        return dynamic_quantize(x)
    if name == "fp8_block":
        # DeepSeek-V4 has powers of two for both, DeepSeek-V3 float32 for both.
        assert given.weights.w13_scale is not None
        floats = given.weights.w13_scale.dtype == torch.float32
        return block_quantize(x, scale_dtype=torch.float32 if floats else torch.uint8)
    return (mxfp8_quantize if name == "mxfp8" else mxfp4_quantize)(x)


def _fused(given: MoEMlpComputeInput, rows: torch.Tensor, scale: torch.Tensor | None) -> _Rows:
    weights = given.weights
    assert scale is not None
    assert weights.w13_nz is not None
    assert weights.w13_scale is not None
    return grouped_matmul_swiglu_quant(
        rows, scale, weights.w13_nz, weights.w13_scale, given.group_list
    )


def _of_sums(given: MoEMlpComputeInput, rows: torch.Tensor, scale: torch.Tensor | None) -> _Rows:
    weights = given.weights
    assert scale is not None
    assert weights.w13_scale is not None
    return dequant_swiglu_quant(
        grouped_matmul_int32(rows, weights.w13, given.group_list),
        weights.w13_scale.float(),
        scale,
        given.group_list.values,
        given.group_list.kind is GroupListKind.CUMULATIVE,
        given.activation.limit,
    )


def _of_floats(given: MoEMlpComputeInput, rows: torch.Tensor, scale: torch.Tensor | None) -> _Rows:
    return swiglu_quant(_gate_up(given, rows, scale), limit=given.activation.limit)


def _separate(given: MoEMlpComputeInput, rows: torch.Tensor, scale: torch.Tensor | None) -> _Rows:
    return _quantized(given.activation(_gate_up(given, rows, scale)), given)


def _gate_up(
    given: MoEMlpComputeInput, rows: torch.Tensor, scale: torch.Tensor | None
) -> torch.Tensor:
    weights = given.weights
    assert weights.w13_scale is not None
    return grouped_matmul_quantized(
        rows,
        scale,
        weights.w13,
        weights.w13_scale,
        given.group_list,
        rows=given.quant.rows,
        weights=given.quant.weights,
        dtype=given.dtype,
        bias=weights.w13_bias,
    )


_STEPS = {
    "gmm_swiglu_quant": _fused,
    "dequant_swiglu_quant": _of_sums,
    "swiglu_quant": _of_floats,
    "separate": _separate,
}
