"""The router with groups in Triton: a tile of tokens against all experts."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from ascend_ops_core.kernels import as_int64

from ascend_fused_moe.ops.grouped_routing.tiles import grouped_bytes, groups_of
from ascend_fused_moe.ops.routing.kernels import LOWEST, launch_tiles, scored_tile, store_best


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
    group = tl.arange(0, GROUP_BLOCK)
    group_number = group.to(tl.float32)
    for unit in range(tl.program_id(0), programs, tl.num_programs(0)):
        first = as_int64(unit) * ROWS
        scores, ranked = scored_tile(
            logits_ptr, bias_ptr, first, rows, row_stride, EXPERTS, ROWS, BLOCK, SCORING, BIASED
        )
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
            score = tl.where(score >= LOWEST, score, LOWEST)
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
        store_best(
            scores, ranked, weights_ptr, ids_ptr, first, rows, scale,
            TOP_K, ROWS, BLOCK, CHOICES, RENORMALIZE,
        )  # fmt: skip


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
    further = {
        "GROUPS": groups,
        "SIZE": logits.shape[1] // groups,
        "TOP_GROUPS": top_groups,
        "GROUP_BLOCK": groups_of(groups),
        "TOP2": group_score == "top2",
    }
    local = grouped_bytes(logits.shape[1], top_k, groups)
    return launch_tiles(
        _grouped_topk_routing_kernel,
        logits,
        bias,
        top_k,
        scoring,
        renormalize,
        scale,
        local,
        further,
    )
