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
# What NaN and minus infinity rank as; below it lies only what is taken.
_LOWEST = np.finfo(np.float32).min

SCORING_CODES = {scoring: code for code, scoring in enumerate(reference.SCORING)}
_SIGMOID, _SOFTMAX = SCORING_CODES["sigmoid"], SCORING_CODES["softmax"]


def supports(logits: torch.Tensor, other: torch.Tensor | None) -> bool:
    """Contiguous, non-empty logits and contiguous bias or table."""
    return (
        logits.dtype in (torch.float32, torch.bfloat16, torch.float16)
        and logits.is_contiguous()
        and logits.numel() > 0
        and (other is None or other.is_contiguous())
    )


def topk_routing(
    logits: torch.Tensor,
    bias: torch.Tensor | None,
    top_k: int,
    scoring: str,
    renormalize: bool,
    scale: float,
) -> tuple[torch.Tensor, torch.Tensor]:
    """See :func:`ascend_fused_moe.ops.routing.topk_routing`."""
    weights = torch.empty((logits.shape[0], top_k), dtype=torch.float32)
    ids = torch.empty((logits.shape[0], top_k), dtype=torch.int64)
    shift = np.zeros(logits.shape[1], dtype=np.float32) if bias is None else as_numpy(bias.float())
    choose_best(
        _logits(logits),
        shift,
        SCORING_CODES[scoring],
        renormalize,
        np.float32(scale),
        as_numpy(weights),
        as_numpy(ids),
    )
    return weights, ids


def hash_routing(
    logits: torch.Tensor,
    token_ids: torch.Tensor,
    table: torch.Tensor,
    scoring: str,
    renormalize: bool,
    scale: float,
) -> tuple[torch.Tensor, torch.Tensor]:
    """See :func:`ascend_fused_moe.ops.routing.hash_routing`."""
    weights = torch.empty((logits.shape[0], table.shape[1]), dtype=torch.float32)
    ids = torch.empty((logits.shape[0], table.shape[1]), dtype=torch.int64)
    inside = look_up(
        _logits(logits),
        as_numpy(token_ids.contiguous()),
        as_numpy(table),
        SCORING_CODES[scoring],
        renormalize,
        np.float32(scale),
        as_numpy(weights),
        as_numpy(ids),
    )
    if not inside:
        # torch's gather names the id that lies outside.
        return reference.hash_routing(logits, token_ids, table, scoring, renormalize, scale)
    return weights, ids


def _logits(logits: torch.Tensor) -> Any:
    return as_numpy(logits.float() if logits.dtype == torch.float16 else logits)


@njit(fastmath=FASTMATH, cache=True)
def _score_row(logits, code, scores):  # type: ignore[no-untyped-def]
    """Fill ``scores`` with the scores of a row of logits."""
    experts = logits.shape[0]
    if code == _SOFTMAX:
        peak = widen(logits[0])
        for e in range(experts):
            # Written so that NaN becomes the peak, and with it every score.
            value = widen(logits[e])
            if not value <= peak:
                peak = value
        total = np.float32(0)
        for e in range(experts):
            scores[e] = np.exp(widen(logits[e]) - peak)
            total += scores[e]
        for e in range(experts):
            scores[e] /= total
    else:
        for e in range(experts):
            scores[e] = _score(widen(logits[e]), code)


@njit(fastmath=FASTMATH, cache=True)
def _score(logit, code):  # type: ignore[no-untyped-def]
    if code == _SIGMOID:
        return np.float32(1) / (np.float32(1) + np.exp(-logit))
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
def choose_best(logits, bias, code, renormalize, scale, weights, ids):  # type: ignore[no-untyped-def]
    tokens, experts = logits.shape
    scores = np.empty(experts, dtype=np.float32)
    ranked = np.empty(experts, dtype=np.float32)
    for t in range(tokens):
        _score_row(logits[t], code, scores)
        for e in range(experts):
            value = scores[e] + bias[e]
            ranked[e] = value if value >= _LOWEST else _LOWEST
        for j in range(ids.shape[1]):
            best = 0
            for e in range(1, experts):
                if ranked[e] > ranked[best]:
                    best = e
            ranked[best] = -np.inf
            ids[t, j] = best
            weights[t, j] = scores[best]
        _finish(weights[t], renormalize, scale)


@njit(fastmath=FASTMATH, cache=True)
def look_up(logits, token_ids, table, code, renormalize, scale, weights, ids):  # type: ignore[no-untyped-def]
    scores = np.empty(logits.shape[1], dtype=np.float32)
    for t in range(logits.shape[0]):
        if code == _SOFTMAX:
            _score_row(logits[t], code, scores)
        for j in range(table.shape[1]):
            e = table[token_ids[t], j]
            if e < 0 or e >= logits.shape[1]:
                return False
            ids[t, j] = e
            weights[t, j] = scores[e] if code == _SOFTMAX else _score(widen(logits[t, e]), code)
        _finish(weights[t], renormalize, scale)
    return True
