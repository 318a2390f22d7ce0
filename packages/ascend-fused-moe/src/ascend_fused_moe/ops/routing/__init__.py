"""Which experts a token goes to, and with what weight.

DeepSeek-V4 scores experts with ``sqrt(softplus(logit))``. Its first layers choose experts by a
fixed table of token ids (hash routing), the others by the highest score plus a bias that moves
the choice but not the weights.
"""

from __future__ import annotations

import torch
from ascend_ops_core.cpu_kernels import CpuKernels
from ascend_ops_core.errors import InvalidInputError
from ascend_ops_core.registry import declare

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
        logits: ``[T, E]``, any float dtype; ``T`` may be 0.
        bias: ``[E]`` of any float dtype that moves the choice only, or None.
        top_k: experts per token, at most ``E``.
        scoring: one of :data:`SCORING_FUNCTIONS`.
        renormalize: make the weights of a token sum to 1 before scaling.
        scale: factor on the weights.

    Returns:
        Weights ``[T, top_k]`` float32 and expert ids ``[T, top_k]`` int64, the highest first, of
        equal ones the lower id first. NaN and minus infinity rank as the lowest float32, so ids
        are in range and different whatever the logits. torch_npu's operator, where it runs, does
        not say in which order it takes equal experts.

    Raises:
        InvalidInputError: ``logits`` or ``bias`` of another shape, ``top_k`` exceeds the number of
            experts, or an unknown scoring.
    """
    _check(logits, scoring)
    experts = logits.shape[1]
    if bias is not None and bias.shape != (experts,):
        raise InvalidInputError(
            f"bias of shape {list(bias.shape)}",
            f"there are {experts} experts",
            "Pass one value per expert.",
        )
    if not 1 <= top_k <= experts:
        raise InvalidInputError(
            f"top_k={top_k}",
            f"there are {experts} experts",
            "Use num_experts_per_tok between 1 and n_routed_experts.",
        )
    weights, ids = _TOPK_ROUTING(logits, bias, top_k, scoring, renormalize, scale)
    return weights, ids


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
        logits: ``[T, E]``, any float dtype; ``T`` may be 0.
        token_ids: ``[T]`` integer, each in ``[0, V)``. On an NPU, where looking would wait for the
            device, a token outside, such as one of a padding row, gets the experts of token 0.
        table: ``[V, top_k]`` integer, each in ``[0, E)``.
        scoring: one of :data:`SCORING_FUNCTIONS`.
        renormalize: make the weights of a token sum to 1 before scaling.
        scale: factor on the weights.

    Returns:
        Weights ``[T, top_k]`` float32 and expert ids ``[T, top_k]`` int64.

    Raises:
        InvalidInputError: arguments of another shape, an unknown scoring, or, on a CPU, a token id
            outside the table.
    """
    _check(logits, scoring)
    if token_ids.shape != logits.shape[:1] or table.dim() != 2:
        raise InvalidInputError(
            f"token_ids {list(token_ids.shape)} and table {list(table.shape)}",
            f"expected [T] and [V, top_k] with T={logits.shape[0]}",
            "Route exactly the tokens that are passed.",
        )
    if token_ids.numel() and token_ids.device.type == "cpu":
        low, high = token_ids.aminmax()
        if int(low) < 0 or int(high) >= table.shape[0]:
            bad = int(low) if int(low) < 0 else int(high)
            raise InvalidInputError(
                f"token id {bad}",
                f"the hash routing table has {table.shape[0]} rows",
                "Placeholder ids must be replaced before they reach the model.",
            )
    weights, ids = _HASH_ROUTING(logits, token_ids, table, scoring, renormalize, scale)
    return weights, ids


def _check(logits: torch.Tensor, scoring: str) -> None:
    if scoring not in reference.SCORING:
        raise InvalidInputError(
            f"scoring_func={scoring!r}",
            f"known are {', '.join(SCORING_FUNCTIONS)}",
            "Correct scoring_func in the model's config.",
        )
    if logits.dim() != 2:
        raise InvalidInputError(
            f"logits of shape {list(logits.shape)}", "expected [T, E]", "Flatten the tokens."
        )


def _topk_routing_cpu(
    logits: torch.Tensor,
    bias: torch.Tensor | None,
    top_k: int,
    scoring: str,
    renormalize: bool,
    scale: float,
) -> tuple[torch.Tensor, torch.Tensor]:
    kernels = _cpu.usable(logits, bias)
    if kernels is not None and kernels.supports(logits, bias):
        return kernels.topk_routing(logits, bias, top_k, scoring, renormalize, scale)
    return reference.topk_routing(logits, bias, top_k, scoring, renormalize, scale)


def _hash_routing_cpu(
    logits: torch.Tensor,
    token_ids: torch.Tensor,
    table: torch.Tensor,
    scoring: str,
    renormalize: bool,
    scale: float,
) -> tuple[torch.Tensor, torch.Tensor]:
    kernels = _cpu.usable(logits, token_ids, table)
    if kernels is not None and kernels.supports(logits, table):
        return kernels.hash_routing(logits, token_ids, table, scoring, renormalize, scale)
    return reference.hash_routing(logits, token_ids, table, scoring, renormalize, scale)


def _empty(logits: torch.Tensor, top_k: int) -> tuple[torch.Tensor, torch.Tensor]:
    shape = logits.shape[0], top_k
    return (
        torch.empty(shape, dtype=torch.float32, device=logits.device),
        torch.empty(shape, dtype=torch.int64, device=logits.device),
    )


_TOPK_ROUTING = declare(
    __name__,
    "topk_routing(Tensor logits, Tensor? bias, int top_k, str scoring, bool renormalize,"
    " float scale) -> (Tensor, Tensor)",
    npu=("torch_npu", "triton"),
    fake=lambda logits, bias, top_k, scoring, renormalize, scale: _empty(logits, top_k),
    cpu=_topk_routing_cpu,
)
_HASH_ROUTING = declare(
    __name__,
    "hash_routing(Tensor logits, Tensor token_ids, Tensor table, str scoring, bool renormalize,"
    " float scale) -> (Tensor, Tensor)",
    npu=("triton",),
    fake=lambda logits, token_ids, table, scoring, renormalize, scale: _empty(
        logits, table.shape[1]
    ),
    cpu=_hash_routing_cpu,
)
