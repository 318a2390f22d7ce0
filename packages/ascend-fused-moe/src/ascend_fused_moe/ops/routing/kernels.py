"""The routers in Triton: a tile of tokens against all experts, one token for the table."""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from ascend_ops_core.devices import current_facts
from ascend_ops_core.kernels import as_int64
from ascend_ops_core.launch import launch
from ascend_ops_core.tiling import block_of, next_power_of_two

from ascend_fused_moe.ops.routing import reference
from ascend_fused_moe.ops.routing.tiles import choices_of, topk_bytes

CODES = {scoring: code for code, scoring in enumerate(reference.SCORING)}
_SIGMOID = tl.constexpr(CODES["sigmoid"])
_SOFTMAX = tl.constexpr(CODES["softmax"])

# Keeps an all-zero row of weights finite, as transformers does.
_FLOOR = tl.constexpr(1e-20)
# torch's softplus is the identity above this.
_SOFTPLUS_LINEAR = tl.constexpr(20.0)
# What NaN and minus infinity rank as; below it lies only what is taken or padding.
LOWEST = tl.constexpr(-3.4028234663852886e38)


@triton.jit
def _elementwise_score(x, SCORING: tl.constexpr):
    """The score of float32 logits one by one."""
    if SCORING == _SIGMOID:
        score = 1.0 / (1.0 + tl.exp(-x))
    else:
        linear = x > _SOFTPLUS_LINEAR
        e = tl.exp(tl.where(linear, 0.0, x))
        # log(1 + e) with the rounding of 1 + e divided out, so that small e keep their digits.
        added = (1.0 + e) - 1.0
        small = added == 0.0
        log1p = tl.where(small, e, tl.log(1.0 + e) * (e / tl.where(small, 1.0, added)))
        score = tl.sqrt(tl.where(linear, x, log1p))
    return score


@triton.jit
def expert_scores(x, inside, SCORING: tl.constexpr):
    """Scores of a float32 tile ``[rows, experts]``; what is not inside has any score."""
    if SCORING == _SOFTMAX:
        peak = tl.max(tl.where(inside, x, float("-inf")), axis=1)
        e = tl.where(inside, tl.exp(x - peak[:, None]), 0.0)
        score = e / tl.sum(e, axis=1)[:, None]
    else:
        score = _elementwise_score(x, SCORING)
    return score


@triton.jit
def scored_tile(
    logits_ptr,
    bias_ptr,
    first,
    rows,
    row_stride,
    EXPERTS: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
    SCORING: tl.constexpr,
    BIASED: tl.constexpr,
):
    """Scores of ``ROWS`` tokens from ``first`` on, and what their experts rank by.

    Experts that there are rank by their biased score, or lowest if that is NaN; padding has any.
    """
    expert = tl.arange(0, BLOCK)
    r = tl.arange(0, ROWS)
    inside = (expert < EXPERTS)[None, :]
    tile = logits_ptr + first * row_stride + r[:, None] * row_stride + expert[None, :]
    x = tl.load(tile, mask=(r < rows - first)[:, None] & inside, other=0.0).to(tl.float32)
    scores = expert_scores(x, inside, SCORING)
    ranked = scores
    if BIASED:
        bias = tl.load(bias_ptr + expert, mask=expert < EXPERTS, other=0.0)
        ranked = ranked + bias.to(tl.float32)[None, :]
    return scores, tl.where(ranked >= LOWEST, ranked, LOWEST)


@triton.jit
def store_best(
    scores,
    ranked,
    weights_ptr,
    ids_ptr,
    first,
    rows,
    scale,
    TOP_K: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
    CHOICES: tl.constexpr,
    RENORMALIZE: tl.constexpr,
):
    """Store the ``TOP_K`` experts that rank highest, the first of equals, and their weights.

    What must not be chosen ranks as minus infinity.
    """
    number = tl.arange(0, BLOCK).to(tl.float32)
    choice = tl.arange(0, CHOICES)
    r = tl.arange(0, ROWS)
    weights = tl.zeros((ROWS, CHOICES), tl.float32)
    ids = tl.zeros((ROWS, CHOICES), tl.float32)
    for j in range(TOP_K):
        best = tl.max(ranked, axis=1)
        at = tl.min(tl.where(ranked == best[:, None], number[None, :], BLOCK), axis=1)
        taken = number[None, :] == at[:, None]
        weight = tl.sum(tl.where(taken, scores, 0.0), axis=1)
        ranked = tl.where(taken, float("-inf"), ranked)
        here = (choice == j)[None, :]
        weights = tl.where(here, weight[:, None], weights)
        ids = tl.where(here, at[:, None], ids)
    if RENORMALIZE:
        weights = weights / (tl.sum(weights, axis=1) + _FLOOR)[:, None]
    out = first * TOP_K + r[:, None] * TOP_K + choice[None, :]
    chosen = (r < rows - first)[:, None] & (choice < TOP_K)[None, :]
    tl.store(weights_ptr + out, weights * scale, mask=chosen)
    tl.store(ids_ptr + out, ids.to(tl.int32).to(tl.int64), mask=chosen)


@triton.jit
def _topk_routing_kernel(
    logits_ptr,
    bias_ptr,
    weights_ptr,
    ids_ptr,
    rows,
    row_stride,
    scale,
    programs,
    EXPERTS: tl.constexpr,
    TOP_K: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
    CHOICES: tl.constexpr,
    SCORING: tl.constexpr,
    BIASED: tl.constexpr,
    RENORMALIZE: tl.constexpr,
):
    inside = (tl.arange(0, BLOCK) < EXPERTS)[None, :]
    for unit in range(tl.program_id(0), programs, tl.num_programs(0)):
        first = as_int64(unit) * ROWS
        scores, ranked = scored_tile(
            logits_ptr, bias_ptr, first, rows, row_stride, EXPERTS, ROWS, BLOCK, SCORING, BIASED
        )
        ranked = tl.where(inside, ranked, float("-inf"))
        store_best(
            scores, ranked, weights_ptr, ids_ptr, first, rows, scale,
            TOP_K, ROWS, BLOCK, CHOICES, RENORMALIZE,
        )  # fmt: skip


@triton.jit
def _hash_routing_kernel(
    logits_ptr,
    token_ptr,
    table_ptr,
    weights_ptr,
    ids_ptr,
    row_stride,
    table_stride,
    vocabulary,
    scale,
    programs,
    EXPERTS: tl.constexpr,
    TOP_K: tl.constexpr,
    BLOCK: tl.constexpr,
    CHOICES: tl.constexpr,
    SCORING: tl.constexpr,
    RENORMALIZE: tl.constexpr,
):
    expert = tl.arange(0, BLOCK)
    choice = tl.arange(0, CHOICES)
    inside = expert < EXPERTS
    for unit in range(tl.program_id(0), programs, tl.num_programs(0)):
        token = tl.load(token_ptr + unit)
        # A padding row may name any token, and must not read beyond the table.
        token = tl.where((token >= 0) & (token < vocabulary), token, 0)
        entry = table_ptr + as_int64(token) * table_stride + choice
        ids = tl.load(entry, mask=choice < TOP_K, other=0).to(tl.int32)
        row = logits_ptr + as_int64(unit) * row_stride + expert
        x = tl.load(row, mask=inside, other=0.0).to(tl.float32)[None, :]
        if SCORING == _SOFTMAX:
            x = expert_scores(x, inside[None, :], SCORING)
        same = expert.to(tl.float32)[None, :] == ids.to(tl.float32)[:, None]
        weights = tl.sum(tl.where(same, x, 0.0), axis=1)
        if SCORING != _SOFTMAX:
            weights = _elementwise_score(weights, SCORING)
        if RENORMALIZE:
            weights = tl.where(choice < TOP_K, weights, 0.0)
            weights = weights / (tl.sum(weights, axis=0) + _FLOOR)
        out = as_int64(unit) * TOP_K + choice
        tl.store(weights_ptr + out, weights * scale, mask=choice < TOP_K)
        tl.store(ids_ptr + out, ids.to(tl.int64), mask=choice < TOP_K)


def topk_routing(
    logits: torch.Tensor,
    bias: torch.Tensor | None,
    top_k: int,
    scoring: str,
    renormalize: bool,
    scale: float,
) -> tuple[torch.Tensor, torch.Tensor]:
    """See :func:`ascend_fused_moe.ops.routing.topk_routing`."""
    local = topk_bytes(logits.shape[1], top_k)
    return launch_tiles(
        _topk_routing_kernel, logits, bias, top_k, scoring, renormalize, scale, local, {}
    )


def launch_tiles(
    kernel: Any,
    logits: torch.Tensor,
    bias: torch.Tensor | None,
    top_k: int,
    scoring: str,
    renormalize: bool,
    scale: float,
    local: int,
    further: dict[str, int | bool],
) -> tuple[torch.Tensor, torch.Tensor]:
    """Launch a router that takes tiles of tokens, and return weights and ids.

    Args:
        kernel: the router.
        logits: ``[T, E]``.
        bias: ``[E]`` or None.
        top_k: experts a token.
        scoring: a key of ``CODES``.
        renormalize: as the operator takes it.
        scale: as well.
        local: bytes that a token takes in the unified buffer besides its logits.
        further: constants of this kernel alone.
    """
    logits = logits if logits.stride(1) == 1 else logits.contiguous()
    rows, experts = logits.shape
    weights, ids = _empty(logits, top_k)
    tile = block_of(
        current_facts(),
        streamed=next_power_of_two(experts) * logits.element_size(),
        local=local,
        minimum=1,
        maximum=next_power_of_two(rows),
    )
    programs = -(-rows // tile)
    arguments = {
        "logits_ptr": logits,
        "bias_ptr": logits if bias is None else bias.contiguous(),
        "weights_ptr": weights,
        "ids_ptr": ids,
        "rows": rows,
        "row_stride": logits.stride(0),
        "scale": scale,
        "programs": programs,
    }
    constants = {
        "EXPERTS": experts,
        "TOP_K": top_k,
        "ROWS": tile,
        "BLOCK": next_power_of_two(experts),
        "CHOICES": choices_of(top_k),
        "SCORING": CODES[scoring],
        "BIASED": bias is not None,
        "RENORMALIZE": renormalize,
    }
    launch(kernel, programs, arguments, constants | further)
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
    logits = logits if logits.stride(1) == 1 else logits.contiguous()
    table = table if table.stride(1) == 1 else table.contiguous()
    rows, experts = logits.shape
    vocabulary, top_k = table.shape
    weights, ids = _empty(logits, top_k)
    arguments = {
        "logits_ptr": logits,
        "token_ptr": token_ids.contiguous(),
        "table_ptr": table,
        "weights_ptr": weights,
        "ids_ptr": ids,
        "row_stride": logits.stride(0),
        "table_stride": table.stride(0),
        "vocabulary": vocabulary,
        "scale": scale,
        "programs": rows,
    }
    constants = {
        "EXPERTS": experts,
        "TOP_K": top_k,
        "BLOCK": next_power_of_two(experts),
        "CHOICES": choices_of(top_k),
        "SCORING": CODES[scoring],
        "RENORMALIZE": renormalize,
    }
    launch(_hash_routing_kernel, rows, arguments, constants)
    return weights, ids


def _empty(logits: torch.Tensor, top_k: int) -> tuple[torch.Tensor, torch.Tensor]:
    shape = logits.shape[0], top_k
    return (
        torch.empty(shape, dtype=torch.float32, device=logits.device),
        torch.empty(shape, dtype=torch.int64, device=logits.device),
    )
