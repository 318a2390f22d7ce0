"""The router with groups in Triton: a tile of tokens against all experts."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from ascend_ops_core.devices import current_facts
from ascend_ops_core.kernels import as_int64
from ascend_ops_core.launch import launch
from ascend_ops_core.tiling import block_of, next_power_of_two

from ascend_fused_moe.ops.grouped_routing.tiles import grouped_bytes, groups_of
from ascend_fused_moe.ops.routing.kernels import CODES, expert_scores
from ascend_fused_moe.ops.routing.tiles import choices_of

# Keeps an all-zero row of weights finite, as transformers does.
_FLOOR = tl.constexpr(1e-20)
# What NaN and minus infinity rank as; below it lies only what is taken or padding.
_LOWEST = tl.constexpr(-3.4028234663852886e38)


@triton.jit
def _grouped_topk_routing_kernel(
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
    GROUPS: tl.constexpr,
    SIZE: tl.constexpr,
    TOP_GROUPS: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
    CHOICES: tl.constexpr,
    GROUP_BLOCK: tl.constexpr,
    SCORING: tl.constexpr,
    TOP2: tl.constexpr,
    BIASED: tl.constexpr,
    RENORMALIZE: tl.constexpr,
):
    expert = tl.arange(0, BLOCK)
    number = expert.to(tl.float32)
    choice = tl.arange(0, CHOICES)
    group = tl.arange(0, GROUP_BLOCK)
    group_number = group.to(tl.float32)
    r = tl.arange(0, ROWS)
    inside = (expert < EXPERTS)[None, :]
    for unit in range(tl.program_id(0), programs, tl.num_programs(0)):
        first = as_int64(unit) * ROWS
        tile = logits_ptr + first * row_stride + r[:, None] * row_stride + expert[None, :]
        mask = (r < rows - first)[:, None] & inside
        x = tl.load(tile, mask=mask, other=0.0).to(tl.float32)
        scores = expert_scores(x, inside, SCORING)
        ranked = scores
        if BIASED:
            bias = tl.load(bias_ptr + expert, mask=expert < EXPERTS, other=0.0)
            ranked = ranked + bias.to(tl.float32)[None, :]
        ranked = tl.where(ranked >= _LOWEST, ranked, _LOWEST)

        of_groups = tl.full((ROWS, GROUP_BLOCK), float("-inf"), tl.float32)
        for g in range(GROUPS):
            member = (expert >= g * SIZE) & (expert < (g + 1) * SIZE)
            within = tl.where(member[None, :], ranked, float("-inf"))
            score = tl.max(within, axis=1)
            if TOP2:
                at = tl.min(tl.where(within == score[:, None], number[None, :], BLOCK), axis=1)
                others = tl.where(number[None, :] == at[:, None], float("-inf"), within)
                score = score + tl.max(others, axis=1)
            # Two of the lowest float32 sum to minus infinity.
            score = tl.where(score >= _LOWEST, score, _LOWEST)
            of_groups = tl.where((group == g)[None, :], score[:, None], of_groups)

        allowed = tl.zeros((ROWS, BLOCK), tl.float32)
        for _ in range(TOP_GROUPS):
            best = tl.max(of_groups, axis=1)
            at = tl.min(
                tl.where(of_groups == best[:, None], group_number[None, :], GROUP_BLOCK), axis=1
            )
            of_groups = tl.where(group_number[None, :] == at[:, None], float("-inf"), of_groups)
            low = (at * SIZE)[:, None]
            member = (number[None, :] >= low) & (number[None, :] < low + SIZE)
            allowed = tl.where(member, 1.0, allowed)
        ranked = tl.where(allowed > 0.0, ranked, float("-inf"))

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
    """See :func:`ascend_fused_moe.ops.grouped_routing.grouped_topk_routing`."""
    logits = logits if logits.stride(1) == 1 else logits.contiguous()
    rows, experts = logits.shape
    weights = torch.empty((rows, top_k), dtype=torch.float32, device=logits.device)
    ids = torch.empty((rows, top_k), dtype=torch.int64, device=logits.device)
    tile = block_of(
        current_facts(),
        streamed=next_power_of_two(experts) * logits.element_size(),
        local=grouped_bytes(experts, top_k, groups),
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
        "GROUPS": groups,
        "SIZE": experts // groups,
        "TOP_GROUPS": top_groups,
        "ROWS": tile,
        "BLOCK": next_power_of_two(experts),
        "CHOICES": choices_of(top_k),
        "GROUP_BLOCK": groups_of(groups),
        "SCORING": CODES[scoring],
        "TOP2": group_score == "top2",
        "BIASED": bias is not None,
        "RENORMALIZE": renormalize,
    }
    launch(_grouped_topk_routing_kernel, programs, arguments, constants)
    return weights, ids
