"""Routing for a CPU: one loop per token instead of a dozen small torch calls."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from ascend_ops_core.cpu_numeric import FASTMATH, as_numpy, widen
from numba import njit

from ascend_fused_moe.ops.routing import reference

# Keeps an all-zero row of weights finite, as transformers does.
_FLOOR = np.float32(1e-20)
# torch's softplus is the identity above this.
_SOFTPLUS_LINEAR = np.float32(20)


def supports(logits: torch.Tensor, scoring: str, other: torch.Tensor | None) -> bool:
    """Contiguous, non-empty logits and contiguous bias or table, DeepSeek-V4's scoring."""
    return (
        scoring == "sqrtsoftplus"
        and logits.dtype in (torch.float32, torch.bfloat16, torch.float16)
        and logits.is_contiguous()
        and logits.numel() > 0
        and (other is None or other.is_contiguous())
    )


def topk_routing(
    logits: torch.Tensor,
    bias: torch.Tensor | None,
    top_k: int,
    renormalize: bool,
    scale: float,
) -> tuple[torch.Tensor, torch.Tensor]:
    """See :func:`ascend_fused_moe.ops.routing.topk_routing`."""
    weights = torch.empty((logits.shape[0], top_k), dtype=torch.float32)
    ids = torch.empty((logits.shape[0], top_k), dtype=torch.int64)
    shift = np.zeros(logits.shape[1], dtype=np.float32) if bias is None else as_numpy(bias.float())
    _topk(_logits(logits), shift, renormalize, np.float32(scale), as_numpy(weights), as_numpy(ids))
    return weights, ids


def hash_routing(
    logits: torch.Tensor,
    token_ids: torch.Tensor,
    table: torch.Tensor,
    renormalize: bool,
    scale: float,
) -> tuple[torch.Tensor, torch.Tensor]:
    """See :func:`ascend_fused_moe.ops.routing.hash_routing`."""
    weights = torch.empty((logits.shape[0], table.shape[1]), dtype=torch.float32)
    ids = torch.empty((logits.shape[0], table.shape[1]), dtype=torch.int64)
    inside = _hash(
        _logits(logits),
        as_numpy(token_ids.contiguous()),
        as_numpy(table),
        renormalize,
        np.float32(scale),
        as_numpy(weights),
        as_numpy(ids),
    )
    if not inside:
        # torch's gather names the id that lies outside.
        return reference.hash_routing(logits, token_ids, table, "sqrtsoftplus", renormalize, scale)
    return weights, ids


def _logits(logits: torch.Tensor) -> Any:
    return as_numpy(logits.float() if logits.dtype == torch.float16 else logits)


@njit(fastmath=FASTMATH, cache=True)
def _score(logit):  # type: ignore[no-untyped-def]
    if logit > _SOFTPLUS_LINEAR:
        return np.sqrt(logit)
    return np.sqrt(np.log1p(np.exp(logit)))


@njit(fastmath=FASTMATH, cache=True)
def _finish(weights, renormalize, scale):  # type: ignore[no-untyped-def]
    total = np.float32(1)
    if renormalize:
        total = _FLOOR
        for j in range(weights.shape[0]):
            total += weights[j]
    for j in range(weights.shape[0]):
        weights[j] = weights[j] / total * scale


@njit(fastmath=FASTMATH, cache=True)
def _topk(logits, bias, renormalize, scale, weights, ids):  # type: ignore[no-untyped-def]
    tokens, experts = logits.shape
    scores = np.empty(experts, dtype=np.float32)
    ranked = np.empty(experts, dtype=np.float32)
    taken = np.empty(experts, dtype=np.bool_)
    for t in range(tokens):
        for e in range(experts):
            scores[e] = _score(widen(logits[t, e]))
            value = scores[e] + bias[e]
            ranked[e] = value if value == value else np.float32(-np.inf)
            taken[e] = False
        for j in range(ids.shape[1]):
            best = -1
            for e in range(experts):
                if not taken[e] and (best < 0 or ranked[e] > ranked[best]):
                    best = e
            taken[best] = True
            ids[t, j] = best
            weights[t, j] = scores[best]
        _finish(weights[t], renormalize, scale)


@njit(fastmath=FASTMATH, cache=True)
def _hash(logits, token_ids, table, renormalize, scale, weights, ids):  # type: ignore[no-untyped-def]
    for t in range(logits.shape[0]):
        for j in range(table.shape[1]):
            e = table[token_ids[t], j]
            if e < 0 or e >= logits.shape[1]:
                return False
            ids[t, j] = e
            weights[t, j] = _score(widen(logits[t, e]))
        _finish(weights[t], renormalize, scale)
    return True
