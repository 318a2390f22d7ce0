"""Which experts a token goes to, where it may visit those of few groups alone.

Experts lie in groups of equal size, such as those of one node. A token first takes the groups of
highest score, then the highest experts within them (DeepSeek-V2 and V3).
"""

from __future__ import annotations

import torch
from ascend_ops_core.errors import InvalidInputError
from ascend_ops_core.registry import declare

from ascend_fused_moe.ops.routing import SCORING_FUNCTIONS

__all__ = ["GROUP_SCORES", "grouped_topk_routing"]

GROUP_SCORES = ("top2", "max")
"""Score of a group: the sum of its two highest experts (V3), or its highest one (V2)."""


def grouped_topk_routing(
    logits: torch.Tensor,
    bias: torch.Tensor | None,
    top_k: int,
    groups: int,
    top_groups: int,
    *,
    scoring: str = "sigmoid",
    group_score: str = "top2",
    renormalize: bool = True,
    scale: float = 1.0,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Choose the ``top_k`` experts of highest ``score + bias`` within the ``top_groups`` groups.

    Args:
        logits: ``[T, E]``, any float dtype; ``T`` may be 0.
        bias: ``[E]`` of any float dtype that moves both choices but not the weights, or None.
        top_k: experts per token, at most those of ``top_groups`` groups.
        groups: number of groups; expert ``e`` lies in group ``e // (E / groups)``.
        top_groups: groups of which a token takes experts.
        scoring: one of :data:`ascend_fused_moe.ops.routing.SCORING_FUNCTIONS`.
        group_score: one of :data:`GROUP_SCORES`, of ``score + bias``.
        renormalize: make the weights of a token sum to 1 before scaling.
        scale: factor on the weights.

    Returns:
        Weights ``[T, top_k]`` float32 and expert ids ``[T, top_k]`` int64, the highest first. Of
        equal groups and of equal experts the lower comes first. NaN and minus infinity rank as the
        lowest float32, so ids are in range and different, and in ``top_groups`` groups, whatever
        the logits. torch_npu's operator, where it runs, does not say in which order it takes
        equal ones.

    Raises:
        InvalidInputError: shapes that do not belong together, numbers of groups or choices that
            do not fit, an unknown scoring or group score.
    """
    for name, value, known in (
        ("scoring_func", scoring, SCORING_FUNCTIONS),
        ("group_score", group_score, GROUP_SCORES),
    ):
        if value not in known:
            raise InvalidInputError(
                f"{name}={value!r}", f"known are {', '.join(known)}", "Correct the model's config."
            )
    if logits.dim() != 2:
        raise InvalidInputError(
            f"logits of shape {list(logits.shape)}", "expected [T, E]", "Flatten the tokens."
        )
    experts = logits.shape[1]
    if bias is not None and bias.shape != (experts,):
        raise InvalidInputError(
            f"bias of shape {list(bias.shape)}",
            f"there are {experts} experts",
            "Pass one value per expert.",
        )
    check_groups(experts, top_k, groups, top_groups, group_score)
    settings = top_k, groups, top_groups, scoring, group_score, renormalize, scale
    weights, ids = _GROUPED_TOPK_ROUTING(logits, bias, *settings)
    return weights, ids


def check_groups(experts: int, top_k: int, groups: int, top_groups: int, group_score: str) -> None:
    """Refuse numbers that do not fit together.

    Raises:
        InvalidInputError: see :func:`grouped_topk_routing`.
    """
    if groups < 1 or experts % groups:
        raise InvalidInputError(
            f"n_group={groups}", f"it must divide {experts} experts", "Correct the model's config."
        )
    if not 1 <= top_groups <= groups:
        raise InvalidInputError(
            f"topk_group={top_groups}",
            f"there are {groups} groups",
            "Use topk_group between 1 and n_group.",
        )
    size = experts // groups
    if group_score == "top2" and size < 2:
        raise InvalidInputError(
            f"n_group={groups} with group_score='top2'",
            f"a group has {size} expert",
            "Use fewer groups, or group_score='max'.",
        )
    if not 1 <= top_k <= top_groups * size:
        raise InvalidInputError(
            f"top_k={top_k}",
            f"{top_groups} groups have {top_groups * size} experts",
            "Use num_experts_per_tok between 1 and those.",
        )


def _empty(
    logits: torch.Tensor, bias: torch.Tensor | None, top_k: int, *settings: object
) -> tuple[torch.Tensor, torch.Tensor]:
    shape = logits.shape[0], top_k
    return (
        torch.empty(shape, dtype=torch.float32, device=logits.device),
        torch.empty(shape, dtype=torch.int64, device=logits.device),
    )


_GROUPED_TOPK_ROUTING = declare(
    __name__,
    "grouped_topk_routing(Tensor logits, Tensor? bias, int top_k, int groups, int top_groups,"
    " str scoring, str group_score, bool renormalize, float scale) -> (Tensor, Tensor)",
    npu=("torch_npu", "triton"),
    fake=_empty,
)
