"""The router with groups by torch_npu, and the limits of every NPU implementation.

Not run on hardware; checked against torch_npu's schemas.
"""

from __future__ import annotations

import torch
from ascend_ops_core.devices import DeviceFacts
from ascend_ops_core.support import Support, first_refusal

from ascend_fused_moe.ops.grouped_routing.tiles import grouped_bytes
from ascend_fused_moe.ops.routing.npu import NORM_TYPES, fits, gating_limits, takes_floats

_GROUP_MODES = {"max": 0, "top2": 1}
_LEAST_SIZE, _ALIGNED, _MAX_ALIGNED = 3, 32, 2048


def grouped_topk_routing(
    logits: torch.Tensor,
    bias: torch.Tensor | None,
    top_k: int,
    groups: int,
    top_groups: int,
    scoring: str,
    group_score: str,
    renormalize: bool,
    scale: float,
) -> tuple[torch.Tensor, torch.Tensor]:
    """``npu_moe_gating_top_k`` on float32 logits made finite.

    See :func:`ascend_fused_moe.ops.grouped_routing.grouped_topk_routing`.
    """
    weights, ids, _ = torch.ops.npu.npu_moe_gating_top_k(
        # The operator says nothing of NaN, and its ids become addresses.
        logits.float().nan_to_num(nan=torch.finfo(torch.float32).min),
        top_k,
        bias=None if bias is None else bias.float(),
        k_group=top_groups,
        group_count=groups,
        group_select_mode=_GROUP_MODES[group_score],
        norm_type=NORM_TYPES[scoring],
        routed_scaling_factor=scale if scoring == "sigmoid" else 1.0,
    )
    if scoring == "softmax":
        weights = weights / weights.sum(dim=-1, keepdim=True) * scale
    return weights, ids.long()


def supports_grouped_topk_routing(
    facts: DeviceFacts,
    logits: torch.Tensor,
    bias: torch.Tensor | None,
    top_k: int,
    groups: int,
    top_groups: int,
    scoring: str,
    group_score: str,
    renormalize: bool,
    scale: float,
) -> Support:
    """The limits without groups; groups of more than two; on A5 their two highest alone.

    These are the limits that torch_npu and the documentation of CANN's MoeGatingTopK state.
    """
    op = "npu_moe_gating_top_k"
    size = logits.shape[-1] // groups
    aligned = -(-size // _ALIGNED) * _ALIGNED * groups
    return first_refusal(
        *gating_limits(facts, logits, scoring, renormalize),
        (size >= _LEAST_SIZE, f"groups of {size} experts, {op} takes {_LEAST_SIZE} and more"),
        (
            aligned <= _MAX_ALIGNED,
            f"{groups} groups of {size} experts, rounded up to {_ALIGNED} they have {aligned}, "
            f"{op} takes {_MAX_ALIGNED}",
        ),
        (
            facts.family != "A5" or group_score == "top2",
            f"group_score={group_score!r} on A5, {op} documents 'top2' there",
        ),
    )


def supports_grouped_topk_routing_triton(
    facts: DeviceFacts,
    logits: torch.Tensor,
    bias: torch.Tensor | None,
    top_k: int,
    groups: int,
    top_groups: int,
    scoring: str,
    group_score: str,
    renormalize: bool,
    scale: float,
) -> Support:
    """Any float dtype; as many experts as the unified buffer holds of one token."""
    return first_refusal(
        takes_floats("the kernel", logits),
        fits(facts, logits, grouped_bytes(logits.shape[1], top_k, groups)),
    )
