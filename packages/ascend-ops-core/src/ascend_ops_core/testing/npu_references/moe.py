"""Routing to experts."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from ascend_ops_core.testing.npu_references.limits import (
    FLOATS,
    family,
    require,
    require_dtype,
    require_rank,
)
from ascend_ops_core.testing.npu_references.registry import reference

_MAX_EXPERTS = 2048
_ALIGNED = 32
_SOFTMAX, _SIGMOID = 0, 1


@reference("npu_moe_gating_top_k", documented=("A2", "A3", "A5"))
def npu_moe_gating_top_k(
    x: torch.Tensor,
    k: int,
    *,
    bias: torch.Tensor | None = None,
    input_ids: torch.Tensor | None = None,
    tid2eid: torch.Tensor | None = None,
    k_group: int = 1,
    group_count: int = 1,
    group_select_mode: int = 0,
    renorm: int = 0,
    norm_type: int = 0,
    out_flag: bool = False,
    routed_scaling_factor: float = 1.0,
    eps: float = 1e-20,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """The k highest of ``norm(x) + bias`` in each row, and their norms without the bias.

    Softmax (``norm_type`` 0) or sigmoid (1) of x [T, E]; bias [E] of x's dtype. Returns weights
    [T, k] of x's dtype, int32 ids, and the norm, float32.

    Limits: at most 2048 experts, more than 2; renorm 0; A5 has sigmoid and group_select_mode 1
    alone; groups of equal size, more than 2, of which rounded up to 32 at most 2048 experts come;
    k at most the experts of ``k_group`` groups.

    Assumed: of equal values the lower id comes first; sigmoid's weights are divided by their sum
    plus eps and multiplied by routed_scaling_factor, softmax's are multiplied alone; bias moves the
    choices of groups and experts only; experts of other groups are never taken; without
    ``out_flag`` the norm is undefined, here zero. Tables are not modelled, nor is NaN.
    """
    op = "npu_moe_gating_top_k"
    require_dtype(op, "x", x, FLOATS)
    require_dtype(op, "bias", bias, (x.dtype,))
    require_rank(op, "x", x, 2, 2)
    experts = x.shape[1]
    require(2 < experts <= _MAX_EXPERTS, op, f"{experts} experts", "3 to 2048")
    require(1 <= k <= experts, op, f"k={k}", f"1 to {experts}")
    require(renorm == 0, op, f"renorm={renorm}", "0")
    require(norm_type in (_SOFTMAX, _SIGMOID), op, f"norm_type={norm_type}", "0 or 1")
    if family() == "A5":
        only = norm_type == _SIGMOID and group_select_mode == 1 and not out_flag
        require(only, op, "softmax, group_select_mode 0 or out_flag on A5", "sigmoid and 1")
    require(input_ids is None and tid2eid is None, op, "a table", "not modelled")
    require(experts % group_count == 0, op, f"{group_count} groups", f"a divisor of {experts}")
    size = experts // group_count
    require(size > 2, op, f"groups of {size} experts", "more than 2")
    aligned = -(-size // _ALIGNED) * _ALIGNED * group_count
    require(aligned <= _MAX_EXPERTS, op, f"{group_count} groups of {size}", "2048 when aligned")
    require(1 <= k_group <= group_count, op, f"k_group={k_group}", f"1 to {group_count}")
    require(k <= size * k_group, op, f"k={k}", f"at most {size * k_group}")
    require(not bool(x.isnan().any()), op, "x with NaN", "not modelled")
    norm = x.float().softmax(-1) if norm_type == _SOFTMAX else x.float().sigmoid()
    ranked = norm if bias is None else norm + bias.float()
    by_group = ranked.view(-1, group_count, size)
    best = by_group.topk(1 + group_select_mode, dim=-1).values.sum(-1)
    chosen = best.sort(dim=-1, descending=True, stable=True).indices[:, :k_group]
    others = torch.ones_like(best, dtype=torch.bool).scatter_(1, chosen, False)
    ranked = by_group.masked_fill(others.unsqueeze(-1), -torch.inf).view(ranked.shape)
    ids = ranked.sort(dim=-1, descending=True, stable=True).indices[:, :k]
    weights = norm.gather(1, ids)
    if norm_type == _SIGMOID:
        weights = weights / (weights.sum(-1, keepdim=True) + eps)
    weights = (weights * routed_scaling_factor).to(x.dtype)
    return weights, ids.int(), norm if out_flag else torch.zeros_like(norm)


@reference("npu_moe_init_routing_v2", documented=("A2", "A3"))
def npu_moe_init_routing_v2(
    x: torch.Tensor,
    expert_idx: torch.Tensor,
    *,
    scale: torch.Tensor | None = None,
    offset: torch.Tensor | None = None,
    active_num: int = -1,
    expert_capacity: int = -1,
    expert_num: int = -1,
    drop_pad_mode: int = 0,
    expert_tokens_num_type: int = 0,
    expert_tokens_num_flag: bool = False,
    quant_mode: int = -1,
    active_expert_range: Sequence[int] = (),
    row_idx_type: int = 0,
    x_dtype: int | None = None,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Rows of x [T, H] once for each of their experts, in order of experts.

    ``expert_idx`` int32 [T, k]. Returns the rows [T * k, H], of which those behind the rows of
    active experts are undefined, here NaN or 77; for each pair of a token and a choice
    the row that it became, int32 [T * k], -1 where its expert is not active; the number of rows of
    each active expert, int64; and an undefined scale, here zero.

    Limits: float16, bfloat16, float32, int8; ids below ``expert_num``; ``expert_tokens_num_flag``
    is set, ``expert_tokens_num_type`` is 1 or 2, ``drop_pad_mode`` 0.

    Assumed: rows of one expert keep the order of tokens. Modelled are ranges from expert 0, all
    rows, without quantisation, with counts and indices of kind 0.
    """
    op = "npu_moe_init_routing_v2"
    require_dtype(op, "x", x, (*FLOATS, torch.int8))
    require_dtype(op, "expert_idx", expert_idx, (torch.int32,))
    require_rank(op, "x", x, 2, 2)
    require_rank(op, "expert_idx", expert_idx, 2, 2)
    require(expert_tokens_num_flag, op, "expert_tokens_num_flag=False", "True")
    require(drop_pad_mode == 0, op, f"drop_pad_mode={drop_pad_mode}", "0")
    require(expert_num > 0, op, f"expert_num={expert_num}", "above 0")
    modelled = (
        expert_tokens_num_type == 1
        and quant_mode == -1
        and row_idx_type == 0
        and scale is None
        and offset is None
        and x_dtype is None
        and active_num in (-1, 0, expert_idx.numel())
        and len(active_expert_range) == 2
        and active_expert_range[0] == 0
    )
    require(modelled, op, "counts, quantisation, scale, rows or range", "not modelled")
    flat = expert_idx.flatten().long()
    in_range = bool(((flat >= 0) & (flat < expert_num)).all())
    require(in_range, op, "an expert id", f"0 to {expert_num - 1}")
    active = active_expert_range[1]
    require(0 < active <= expert_num, op, f"active_expert_range to {active}", f"1 to {expert_num}")
    order = flat.argsort(stable=True)
    became = torch.empty_like(order)
    became[order] = torch.arange(order.numel())
    became = torch.where(flat < active, became, -1)
    counts = torch.bincount(flat, minlength=expert_num)[:active]
    rows = x[order // expert_idx.shape[1]]
    rows[int(counts.sum()) :] = torch.nan if x.is_floating_point() else 77
    return rows, became.int(), counts, torch.zeros(flat.numel())


@reference("npu_moe_finalize_routing", documented=("A2",))
def npu_moe_finalize_routing(
    expanded_permuted_rows: torch.Tensor,
    skip1: torch.Tensor | None,
    skip2: torch.Tensor | None,
    bias: torch.Tensor | None,
    scales: torch.Tensor | None,
    expanded_src_to_dst_row: torch.Tensor,
    export_for_source_row: torch.Tensor | None,
    drop_pad_mode: int | None = 0,
    k: int | None = 1,
) -> torch.Tensor:
    """``sum_j scales[t, j] * rows[index[t + j * T]]`` for T tokens.

    Rows [T * k, H] float16, bfloat16 or float32; scales [T, k] of the same dtype; the index int32
    [T * k], each in 0 to T * k - 1.

    Assumed: sums are made in float32, choice by choice, and rounded once. Modelled is the call with
    scales alone, without rows that are added, biases or padding.
    """
    op = "npu_moe_finalize_routing"
    rows, index = expanded_permuted_rows, expanded_src_to_dst_row
    alone = skip1 is None and skip2 is None and bias is None and export_for_source_row is None
    require(alone and scales is not None, op, "rows that are added, or no scales", "not modelled")
    assert scales is not None
    require(drop_pad_mode == 0, op, f"drop_pad_mode={drop_pad_mode}", "0")
    require_dtype(op, "expanded_permuted_rows", rows, FLOATS)
    require_dtype(op, "scales", scales, (rows.dtype,))
    require_dtype(op, "expanded_src_to_dst_row", index, (torch.int32,))
    require_rank(op, "scales", scales, 2, 2)
    require_rank(op, "expanded_permuted_rows", rows, 2, 2)
    tokens, choices = scales.shape
    require(index.shape == (tokens * choices,), op, f"an index {list(index.shape)}", "[T * k]")
    require(len(rows) == tokens * choices, op, f"{len(rows)} rows", f"{tokens * choices}")
    inside = bool(((index >= 0) & (index < len(rows))).all())
    require(inside, op, "an index", f"0 to {len(rows) - 1}")
    out = torch.zeros(tokens, rows.shape[1])
    for choice, at in enumerate(index.long().view(choices, tokens)):
        out += rows[at].float() * scales[:, choice, None].float()
    return out.to(rows.dtype)
