"""The routers by torch_npu, and the limits of every NPU implementation.

Routing by table has no torch_npu call: ``npu_moe_gating_top_k`` takes a table, but documents
softmax and sigmoid alone, and DeepSeek-V4, whose routers have tables, scores with sqrtsoftplus.

Not run on hardware; checked against torch_npu's schemas.
"""

from __future__ import annotations

import torch
from ascend_ops_core.devices import DeviceFacts
from ascend_ops_core.support import Support, first_refusal
from ascend_ops_core.tiling import SHARE, next_power_of_two

from ascend_fused_moe.ops.routing.tiles import hash_bytes, topk_bytes

_FLOATS = (torch.float16, torch.bfloat16, torch.float32)
NORM_TYPES = {"softmax": 0, "sigmoid": 1}
_FAMILIES = {"softmax": ("A2", "A3"), "sigmoid": ("A2", "A3", "A5")}
_LEAST_EXPERTS, _MAX_EXPERTS = 3, 2048
# The only group selection of A5; with one group both select it.
_SUM_OF_TWO = 1


def topk_routing(
    logits: torch.Tensor,
    bias: torch.Tensor | None,
    top_k: int,
    scoring: str,
    renormalize: bool,
    scale: float,
) -> tuple[torch.Tensor, torch.Tensor]:
    """``npu_moe_gating_top_k`` with one group, on float32 logits made finite.

    See :func:`ascend_fused_moe.ops.routing.topk_routing`.
    """
    weights, ids, _ = torch.ops.npu.npu_moe_gating_top_k(
        # The operator says nothing of NaN, and its ids become addresses.
        logits.float().nan_to_num(nan=torch.finfo(torch.float32).min),
        top_k,
        bias=None if bias is None else bias.float(),
        group_select_mode=_SUM_OF_TWO,
        norm_type=NORM_TYPES[scoring],
        routed_scaling_factor=scale if scoring == "sigmoid" else 1.0,
    )
    if scoring == "softmax":
        weights = weights / weights.sum(dim=-1, keepdim=True) * scale
    return weights, ids.long()


def supports_topk_routing(
    facts: DeviceFacts,
    logits: torch.Tensor,
    bias: torch.Tensor | None,
    top_k: int,
    scoring: str,
    renormalize: bool,
    scale: float,
) -> Support:
    """Softmax on A2 and A3, sigmoid; renormalised weights; 3 to 2048 experts.

    These are the limits that torch_npu and the documentation of CANN's MoeGatingTopK state.
    """
    return first_refusal(*gating_limits(facts, logits, scoring, renormalize))


def gating_limits(
    facts: DeviceFacts, logits: torch.Tensor, scoring: str, renormalize: bool
) -> tuple[tuple[bool, str], ...]:
    """The limits of npu_moe_gating_top_k that hold with and without groups, for first_refusal."""
    op = "npu_moe_gating_top_k"
    experts = logits.shape[-1]
    families = _FAMILIES.get(scoring, ())
    return (
        (scoring in NORM_TYPES, f"{scoring}, {op} documents softmax and sigmoid"),
        (
            facts.family in families,
            f"{scoring} on {facts.family}, {op} documents it for {', '.join(families)}",
        ),
        (renormalize, f"weights that are not renormalised, {op} documents none with sigmoid"),
        takes_floats(op, logits),
        (
            _LEAST_EXPERTS <= experts <= _MAX_EXPERTS,
            f"{experts} experts, {op} takes {_LEAST_EXPERTS} to {_MAX_EXPERTS}",
        ),
        (logits.numel() > 0, "logits are empty"),
    )


def supports_topk_routing_triton(
    facts: DeviceFacts,
    logits: torch.Tensor,
    bias: torch.Tensor | None,
    top_k: int,
    scoring: str,
    renormalize: bool,
    scale: float,
) -> Support:
    """Any float dtype; as many experts as the unified buffer holds of one token."""
    return first_refusal(
        takes_floats("the kernel", logits), fits(facts, logits, topk_bytes(logits.shape[1], top_k))
    )


def supports_hash_routing_triton(
    facts: DeviceFacts,
    logits: torch.Tensor,
    token_ids: torch.Tensor,
    table: torch.Tensor,
    scoring: str,
    renormalize: bool,
    scale: float,
) -> Support:
    """Any float dtype; as many experts as the unified buffer holds of one token."""
    return first_refusal(
        takes_floats("the kernel", logits),
        fits(facts, logits, hash_bytes(logits.shape[1], table.shape[1])),
    )


def takes_floats(taker: str, x: torch.Tensor) -> tuple[bool, str]:
    """The check that logits are floats, for first_refusal."""
    return x.dtype in _FLOATS, f"logits of {x.dtype}, {taker} takes float16, bfloat16, float32"


def fits(facts: DeviceFacts, logits: torch.Tensor, local: int) -> tuple[bool, str]:
    """The check that a token takes no more than the unified buffer, for first_refusal."""
    # Every load is double buffered.
    needed = 2 * next_power_of_two(logits.shape[1]) * logits.element_size() + local
    limit = int(facts.ub_bytes * SHARE)
    return needed <= limit, f"{logits.shape[1]} experts take {needed} B, the kernel has {limit} B"
