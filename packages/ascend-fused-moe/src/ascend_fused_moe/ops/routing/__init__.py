"""Which experts a token goes to, and with what weight.

DeepSeek-V4 scores experts with ``sqrt(softplus(logit))``. Its first layers choose experts by a
fixed table of token ids (hash routing), the others by the highest score plus a bias that moves
the choice but not the weights.
"""

from __future__ import annotations

import torch
from ascend_ops_core.cpu_kernels import CpuKernels
from ascend_ops_core.errors import InvalidInputError

from ascend_fused_moe.ops.routing import reference

_cpu = CpuKernels("ascend_fused_moe.ops.routing.cpu")

__all__ = ["SCORING_FUNCTIONS", "hash_routing", "topk_routing"]

SCORING_FUNCTIONS = tuple(reference.SCORING)


def topk_routing(
    logits: torch.Tensor,
    bias: torch.Tensor | None,
    top_k: int,
    *,
    scoring: str = "sqrtsoftplus",
    renormalize: bool = True,
    scale: float = 1.0,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Choose the ``top_k`` experts of highest ``score + bias``.

    Args:
        logits: ``[T, E]``, any float dtype.
        bias: ``[E]`` float32 that moves the choice only, or None.
        top_k: experts per token, at most ``E``.
        scoring: one of :data:`SCORING_FUNCTIONS`.
        renormalize: make the weights of a token sum to 1 before scaling.
        scale: factor on the weights.

    Returns:
        Weights ``[T, top_k]`` float32 and expert ids ``[T, top_k]`` int64. A NaN logit counts as
        the lowest score, so ids are always in range; ties go to either expert.

    Raises:
        InvalidInputError: ``top_k`` exceeds the number of experts, or an unknown scoring.
    """
    _check_scoring(scoring)
    if not 1 <= top_k <= logits.shape[-1]:
        raise InvalidInputError(
            f"top_k={top_k}",
            f"there are {logits.shape[-1]} experts",
            "Use num_experts_per_tok between 1 and n_routed_experts.",
        )
    kernels = _cpu.usable(logits, bias)
    if kernels is not None and kernels.supports(logits, scoring, bias):
        return kernels.topk_routing(logits, bias, top_k, renormalize, scale)
    return reference.topk_routing(logits, bias, top_k, scoring, renormalize, scale)


def hash_routing(
    logits: torch.Tensor,
    token_ids: torch.Tensor,
    table: torch.Tensor,
    *,
    scoring: str = "sqrtsoftplus",
    renormalize: bool = True,
    scale: float = 1.0,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Look the experts up by token id; the logits only weight them.

    Args:
        logits: ``[T, E]``, any float dtype.
        token_ids: ``[T]`` integer, each in ``[0, V)``.
        table: ``[V, top_k]`` expert ids.
        scoring: one of :data:`SCORING_FUNCTIONS`.
        renormalize: make the weights of a token sum to 1 before scaling.
        scale: factor on the weights.

    Returns:
        Weights ``[T, top_k]`` float32 and expert ids ``[T, top_k]`` int64.

    Raises:
        InvalidInputError: a token id outside the table (on a CPU, where looking costs nothing).
    """
    _check_scoring(scoring)
    if token_ids.numel() and token_ids.device.type == "cpu":
        low, high = token_ids.aminmax()
        if int(low) < 0 or int(high) >= table.shape[0]:
            bad = int(low) if int(low) < 0 else int(high)
            raise InvalidInputError(
                f"token id {bad}",
                f"the hash routing table has {table.shape[0]} rows",
                "Placeholder ids must be replaced before they reach the model.",
            )
    kernels = _cpu.usable(logits, token_ids, table)
    if kernels is not None and kernels.supports(logits, scoring, table):
        return kernels.hash_routing(logits, token_ids, table, renormalize, scale)
    return reference.hash_routing(logits, token_ids, table, scoring, renormalize, scale)


def _check_scoring(scoring: str) -> None:
    if scoring not in reference.SCORING:
        raise InvalidInputError(
            f"scoring_func={scoring!r}",
            f"known are {', '.join(SCORING_FUNCTIONS)}",
            "Correct scoring_func in the model's config.",
        )
