"""Which steps a quantised pass is made of, and why: decided from shapes and data alone."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import torch
from ascend_ops_core.devices import DeviceFacts
from ascend_ops_core.registry import Operator, find
from ascend_ops_core.support import SUPPORTED, Support, refuse

from ascend_fused_moe.mlp.activation import ActivationKind
from ascend_fused_moe.mlp.data import MoEMlpComputeInput

__all__ = ["FUSIONS", "FusionDecision", "MlpPlan", "plan_mlp"]

FUSIONS = ("gmm_swiglu_quant", "dequant_swiglu_quant", "swiglu_quant", "separate")
"""The ways from the first product to the rows of the second, the most fused first.

- ``gmm_swiglu_quant``: product, activation and quantisation in one operator.
- ``dequant_swiglu_quant``: exact integer sums, then scales, activation and quantisation in one.
- ``swiglu_quant``: a product in the model's dtype, then activation and quantisation in one.
- ``separate``: product, activation, quantisation.
"""


@dataclass(frozen=True)
class FusionDecision:
    """Whether one fusion is used.

    Attributes:
        fusion: one of :data:`FUSIONS`.
        reason: why it cannot be; empty where it can.
    """

    fusion: str
    reason: str


@dataclass(frozen=True)
class MlpPlan:
    """How a pass is made.

    Attributes:
        chosen: the first of :data:`FUSIONS` that can be used.
        decisions: of those before it and of itself, in order.
    """

    chosen: str
    decisions: tuple[FusionDecision, ...]

    def __str__(self) -> str:
        refused = "; ".join(f"{one.fusion}: {one.reason}" for one in self.decisions if one.reason)
        return self.chosen + (f" (not {refused})" if refused else "")


def plan_mlp(given: MoEMlpComputeInput, facts: DeviceFacts | None) -> MlpPlan:
    """Choose the way through the activation.

    Args:
        given: the pass; tensors may be on ``meta``.
        facts: the NPU family that runs it; None on a CPU.
    """
    decisions: list[FusionDecision] = []
    for fusion in FUSIONS:
        answer = _PREDICATES[fusion](given, facts)
        decisions.append(FusionDecision(fusion, answer.reason))
        if answer:
            break
    return MlpPlan(decisions[-1].fusion, tuple(decisions))


def _gmm_swiglu_quant(given: MoEMlpComputeInput, facts: DeviceFacts | None) -> Support:
    answer = _int8_swiglu(given)
    if not answer:
        return answer
    weights = given.weights
    if given.activation.limit:
        return refuse(f"a limit of {given.activation.limit}, the operator has none")
    if weights.w13_nz is None:
        return refuse("no weight in FRACTAL_NZ, which the operator takes")
    if weights.w13_scale is None or weights.w13_scale.dtype != torch.float32:
        return refuse("w13_scale is not float32, which the operator takes")
    if facts is None:
        return SUPPORTED
    arguments = (
        *_int8_rows(given),
        weights.w13_nz,
        weights.w13_scale,
        given.group_list.values,
        False,
    )
    return _operator("grouped_matmul_swiglu_quant").supports("torch_npu", facts, *arguments)


def _dequant_swiglu_quant(given: MoEMlpComputeInput, facts: DeviceFacts | None) -> Support:
    answer = _int8_swiglu(given)
    if not answer or facts is None:
        return answer
    rows, _ = _int8_rows(given)
    arguments = rows, given.weights.w13, given.group_list.values, False
    return _operator("grouped_matmul_int32").supports("torch_npu", facts, *arguments)


def _swiglu_quant(given: MoEMlpComputeInput, facts: DeviceFacts | None) -> Support:
    if given.quant.rows != "int8":
        return refuse(f"rows become {given.quant.rows}, the operator gives int8")
    if given.activation.kind is not ActivationKind.SWIGLU:
        return refuse(f"the activation {given.activation.kind.value}, the operator has swiglu")
    return SUPPORTED


def _separate(given: MoEMlpComputeInput, facts: DeviceFacts | None) -> Support:
    return SUPPORTED


def _int8_swiglu(given: MoEMlpComputeInput) -> Support:
    answer = _swiglu_quant(given, None)
    if not answer:
        return answer
    if given.quant.weights != "int8":
        return refuse(f"weights are {given.quant.weights}, the operator takes int8")
    if given.weights.w13_bias is not None:
        return refuse("a bias behind the first product, the operator has none")
    return SUPPORTED


def _int8_rows(given: MoEMlpComputeInput) -> tuple[torch.Tensor, torch.Tensor]:
    """The quantised rows as shapes alone."""
    if given.rows_scale is not None:
        return given.rows, given.rows_scale
    shape = given.rows.shape
    values = torch.empty(shape, dtype=torch.int8, device="meta")
    return values, torch.empty(shape[0], dtype=torch.float32, device="meta")


@cache
def _operator(name: str) -> Operator:
    return find(f"ascend_fused_moe::{name}")


_PREDICATES = {
    "gmm_swiglu_quant": _gmm_swiglu_quant,
    "dequant_swiglu_quant": _dequant_swiglu_quant,
    "swiglu_quant": _swiglu_quant,
    "separate": _separate,
}
