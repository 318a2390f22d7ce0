"""Exchange of rows between the ranks that hold experts, over the process group of that name.

A communicator of the simulated device is a ``torch.distributed`` group of host tensors, found by
torch's name of it. Documented here are the parts of two public revisions of the documentation
(Ascend/op-plugin) that agree; the wheel has none.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import distributed
from torch.distributed.distributed_c10d import GroupName, _resolve_process_group

from ascend_ops_core.testing.npu_references.limits import (
    HALVES,
    family,
    require,
    require_dtype,
    require_rank,
)
from ascend_ops_core.testing.npu_references.registry import reference

_RANKS = {"A2": (16, 32, 64), "A3": range(2, 385)}
_ROWS = {"A2": 256, "A3": 512}
_HIDDEN = {"A2": range(32, 7169, 32), "A3": range(1024, 7169)}
_INFO = 128
_DEFAULTS = {
    "group_tp": "",
    "tp_world_size": 0,
    "tp_rank_id": 0,
    "expert_shard_type": 0,
    "shared_expert_num": 1,
    "shared_expert_rank_num": 0,
    "quant_mode": 0,
    "comm_quant_mode": 0,
    "comm_alg": "",
    "zero_expert_num": 0,
    "copy_expert_num": 0,
    "const_expert_num": 0,
}


@reference("npu_moe_distribute_dispatch_v2", documented=("A2", "A3"))
def npu_moe_distribute_dispatch_v2(
    x: torch.Tensor,
    expert_ids: torch.Tensor,
    group_ep: str,
    ep_world_size: int,
    ep_rank_id: int,
    moe_expert_num: int,
    *,
    x_active_mask: torch.Tensor | None = None,
    expert_scales: torch.Tensor | None = None,
    global_bs: int = 0,
    expert_token_nums_type: int = 1,
    **others: Any,
) -> tuple[torch.Tensor, ...]:
    """Send each row of x [N, H] to the ranks of its experts, ``expert_ids`` int32 [N, k].

    Rank r holds experts ``[r * L, (r + 1) * L)``. Returns the rows received [A, H] in the order of
    experts, with ``A = global_bs * min(L, k)``; an undefined scale; three tensors for the combine,
    whose values may not be relied on; and, fourth, the rows of each expert, int64 [L], as counts
    (``expert_token_nums_type`` 1) or sums (0).

    Limits: float16 or bfloat16; ids of different experts; A2 16, 32 or 64 ranks, 256 rows, sizes
    up to 7168 that 32 divides, 24 experts a rank, a scale for each choice; A3 2 to 384 ranks, 512
    rows, sizes 1024 to 7168, no scales; 1 to 16 choices, at most 512 experts which the ranks
    divide; of a mask the true values come first; ``global_bs`` 0 or the rows of all ranks.

    Assumed: rows of an expert come in the order of ranks and then of rows. Rows behind those
    received are undefined, here NaN. Quantisation, shared or special experts and communication
    between tensor-parallel ranks are not modelled, nor different numbers of rows on the ranks.
    """
    op = "npu_moe_distribute_dispatch_v2"
    _check(op, x, expert_ids, ep_world_size, moe_expert_num, others)
    _check_mask(op, x_active_mask, x.shape[0])
    on_a2 = family() == "A2"
    require((expert_scales is not None) == on_a2, op, "expert_scales", "given on A2 alone")
    rows, choices = expert_ids.shape
    ranks, local = ep_world_size, moe_expert_num // ep_world_size
    require(global_bs in (0, rows * ranks), op, f"global_bs={global_bs}", f"0 or {rows * ranks}")
    group = _group(op, group_ep, ranks, ep_rank_id)

    active = torch.ones(rows).bool() if x_active_mask is None else x_active_mask
    flat = expert_ids.flatten().long()
    pairs = active.repeat_interleave(choices).nonzero().flatten()
    pairs = pairs[flat[pairs].argsort(stable=True)]
    leaving = torch.bincount(flat[pairs], minlength=moe_expert_num).view(ranks, local)
    arriving = torch.empty_like(leaving)
    distributed.all_to_all_single(arriving, leaving, group=group)
    sizes = leaving.sum(1).tolist(), arriving.sum(1).tolist()
    # Where a row comes from travels with it.
    origin = torch.stack([torch.full_like(pairs, ep_rank_id), pairs], dim=1)
    got_rows = _exchanged(x[pairs // choices], *sizes, group)
    got_origin = _exchanged(origin, *sizes, group)
    expert = torch.arange(local).repeat(ranks).repeat_interleave(arriving.flatten())
    order = expert.argsort(stable=True)

    capacity = rows * ranks * min(local, choices)
    count = order.numel()
    expanded = x.new_full((capacity, x.shape[1]), torch.nan)
    expanded[:count] = got_rows[order]
    info = torch.zeros(max(rows * choices, capacity * _INFO), dtype=torch.int32)
    info[: count * _INFO].view(count, _INFO)[:, :2] = got_origin[order].int()
    numbers = arriving.sum(0)
    ends = arriving.T.flatten().cumsum(0).int()
    expanded_scales = torch.zeros(0)
    if on_a2:
        more = rows * ranks * 2 * choices * (ranks // 8)
        ends = torch.cat([ends, torch.zeros(more, dtype=torch.int32)])
        expanded_scales = torch.zeros(capacity)
    return (
        expanded,
        torch.zeros(capacity),
        info,
        numbers if expert_token_nums_type == 1 else numbers.cumsum(0),
        ends,
        torch.zeros(0, dtype=torch.int32),
        expanded_scales,
    )


@reference("npu_moe_distribute_combine_v2", documented=("A2", "A3"))
def npu_moe_distribute_combine_v2(
    expand_x: torch.Tensor,
    expert_ids: torch.Tensor,
    assist_info_for_combine: torch.Tensor,
    ep_send_counts: torch.Tensor,
    expert_scales: torch.Tensor,
    group_ep: str,
    ep_world_size: int,
    ep_rank_id: int,
    moe_expert_num: int,
    *,
    tp_send_counts: torch.Tensor | None = None,
    x_active_mask: torch.Tensor | None = None,
    expand_scales: torch.Tensor | None = None,
    global_bs: int = 0,
    **others: Any,
) -> torch.Tensor:
    """The way back of npu_moe_distribute_dispatch_v2: ``sum_j scales[t, j] * row of (t, j)``.

    ``expert_scales`` float32 [N, k]; the other tensors are the dispatch's. Returns [N, H].

    Limits: those of the dispatch, with ``expand_scales`` on A2 alone.

    Assumed: products are summed in float32 and rounded once. What becomes of rows that are not
    active is not documented; here they are NaN.
    """
    op = "npu_moe_distribute_combine_v2"
    _check(op, expand_x, expert_ids, ep_world_size, moe_expert_num, others)
    _check_mask(op, x_active_mask, expert_ids.shape[0])
    require_dtype(op, "expert_scales", expert_scales, (torch.float32,))
    on_a2 = family() == "A2"
    require((expand_scales is not None) == on_a2, op, "expand_scales", "given on A2 alone")
    rows, choices = expert_ids.shape
    ranks, local = ep_world_size, moe_expert_num // ep_world_size
    require(global_bs in (0, rows * ranks), op, f"global_bs={global_bs}", f"0 or {rows * ranks}")
    group = _group(op, group_ep, ranks, ep_rank_id)

    count = int(ep_send_counts[ranks * local - 1])
    info = assist_info_for_combine[: count * _INFO].view(count, _INFO)[:, :2].long()
    order = info[:, 0].argsort(stable=True)
    leaving = torch.bincount(info[:, 0], minlength=ranks)
    arriving = torch.empty_like(leaving)
    distributed.all_to_all_single(arriving, leaving, group=group)
    sizes = leaving.tolist(), arriving.tolist()
    back = _exchanged(expand_x[:count][order], *sizes, group)
    pairs = _exchanged(info[order, 1], *sizes, group)
    terms = back.float() * expert_scales.flatten()[pairs].unsqueeze(1)
    total = torch.zeros(rows, expand_x.shape[1]).index_add_(0, pairs // choices, terms)
    if x_active_mask is not None:
        total[~x_active_mask] = torch.nan
    return total.to(expand_x.dtype)


def _check(
    op: str,
    rows: torch.Tensor,
    ids: torch.Tensor,
    ranks: int,
    experts: int,
    others: dict[str, Any],
) -> None:
    here = family()
    changed = [
        name for name, value in others.items() if value is not None and value != _DEFAULTS.get(name)
    ]
    require(not changed, op, ", ".join(changed), "not modelled")
    require(here in _RANKS, op, f"device family {here}", f"documented for {', '.join(_RANKS)}")
    require_dtype(op, "rows", rows, HALVES)
    require_dtype(op, "expert_ids", ids, (torch.int32,))
    require_rank(op, "rows", rows, 2, 2)
    require_rank(op, "expert_ids", ids, 2, 2)
    require(ranks in _RANKS[here], op, f"{ranks} ranks", f"{_RANKS[here]}")
    require(0 < len(ids) <= _ROWS[here], op, f"{len(ids)} rows", f"1 to {_ROWS[here]}")
    require(rows.shape[1] in _HIDDEN[here], op, f"size {rows.shape[1]}", f"{_HIDDEN[here]}")
    require(1 <= ids.shape[1] <= 16, op, f"{ids.shape[1]} choices", "1 to 16")
    require(experts <= 512, op, f"{experts} experts", "at most 512")
    require(experts % ranks == 0, op, f"{experts} experts on {ranks} ranks", "they divide")
    require(here != "A2" or experts // ranks <= 24, op, "experts of a rank", "at most 24")
    in_range = bool(((ids >= 0) & (ids < experts)).all())
    require(in_range, op, "an expert id", f"0 to {experts - 1}")
    different = bool((ids.sort(-1).values.diff(dim=-1) > 0).all())
    require(different, op, "choices of a row", "they are different experts")


def _check_mask(op: str, active: torch.Tensor | None, rows: int) -> None:
    if active is None:
        return
    require(family() != "A2", op, "x_active_mask on A2", "not in all of its ways")
    require_dtype(op, "x_active_mask", active, (torch.bool,))
    require(tuple(active.shape) == (rows,), op, f"mask {list(active.shape)}", f"[{rows}]")
    first = bool((active.int().diff() <= 0).all())
    require(first, op, "x_active_mask", "all true values before all false ones")


def _group(op: str, name: str, ranks: int, rank: int) -> Any:
    group = _resolve_process_group(GroupName(name))
    size, here = distributed.get_world_size(group), distributed.get_rank(group)
    require(size == ranks, op, f"ep_world_size={ranks}", f"the group has {size}")
    require(here == rank, op, f"ep_rank_id={rank}", f"this process is {here}")
    return group


def _exchanged(
    rows: torch.Tensor, leaving: list[int], arriving: list[int], group: Any
) -> torch.Tensor:
    received = rows.new_empty(sum(arriving), *rows.shape[1:])
    distributed.all_to_all_single(received, rows.contiguous(), arriving, leaving, group=group)
    return received
