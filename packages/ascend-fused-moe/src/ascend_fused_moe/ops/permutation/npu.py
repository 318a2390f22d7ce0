"""The permutation by experts by torch_npu, and its limits.

Limits are those of torch_npu's documentation of ``npu_moe_init_routing_v2`` and
``npu_moe_finalize_routing``. Neither is given an argument that only some of the supported wheels
have (``x_dtype`` of the former, ``k`` of the latter). Not run on hardware; checked against
torch_npu's schemas.
"""

from __future__ import annotations

import torch
from ascend_ops_core.devices import DeviceFacts
from ascend_ops_core.support import Support, first_refusal

_FLOATS = (torch.float16, torch.bfloat16, torch.float32)
_MAX_EXPERTS = 10240
_COUNTS, _UNQUANTIZED, _GATHER = 1, -1, 0
_INIT, _FINALIZE = "npu_moe_init_routing_v2", "npu_moe_finalize_routing"


def permute_rows(
    x: torch.Tensor, ids: torch.Tensor, experts: int
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """``npu_moe_init_routing_v2``; what is no choice goes to one more expert, which is not active.

    See :func:`ascend_fused_moe.ops.permutation.permute_rows`.
    """
    chosen = torch.where((ids >= 0) & (ids < experts), ids, experts).int()
    rows, index, counts, _ = torch.ops.npu.npu_moe_init_routing_v2(
        x,
        chosen,
        active_num=ids.numel(),
        expert_num=experts + 1,
        expert_tokens_num_type=_COUNTS,
        expert_tokens_num_flag=True,
        active_expert_range=[0, experts],
        quant_mode=_UNQUANTIZED,
        row_idx_type=_GATHER,
    )
    return rows, index.view(ids.shape).long(), counts


def supports_permute_rows(
    facts: DeviceFacts, x: torch.Tensor, ids: torch.Tensor, experts: int
) -> Support:
    """A2 and A3; floats; fewer than 10240 experts; some rows and choices."""
    names = ", ".join(str(one).removeprefix("torch.") for one in _FLOATS)
    return first_refusal(
        (
            facts.family in ("A2", "A3"),
            f"{facts.family}, {_INIT} is documented for A2, A3",
        ),
        (x.dtype in _FLOATS, f"x of {x.dtype}, {_INIT} takes {names}"),
        (
            experts < _MAX_EXPERTS,
            f"{experts} experts, {_INIT} takes fewer than {_MAX_EXPERTS}",
        ),
        (x.numel() > 0 and ids.numel() > 0, "x or ids are empty"),
    )


def combine_rows(
    rows: torch.Tensor, index: torch.Tensor, weights: torch.Tensor, complete: bool
) -> torch.Tensor:
    """``npu_moe_finalize_routing``, which wants rows choice by choice.

    See :func:`ascend_fused_moe.ops.permutation.combine_rows`.
    """
    out: torch.Tensor = torch.ops.npu.npu_moe_finalize_routing(
        rows,
        None,
        None,
        None,
        weights.to(rows.dtype),
        index.t().reshape(-1).int(),
        None,
        drop_pad_mode=0,
    )
    return out


def supports_combine_rows(
    facts: DeviceFacts,
    rows: torch.Tensor,
    index: torch.Tensor,
    weights: torch.Tensor,
    complete: bool,
) -> Support:
    """A2; floats; a row for every choice, and as many rows as choices."""
    names = ", ".join(str(one).removeprefix("torch.") for one in _FLOATS)
    return first_refusal(
        (facts.family == "A2", f"{facts.family}, {_FINALIZE} is documented for A2"),
        (rows.dtype in _FLOATS, f"rows of {rows.dtype}, {_FINALIZE} takes {names}"),
        (complete, f"choices without a row, {_FINALIZE} takes indices from 0"),
        (
            rows.shape[0] == index.numel(),
            f"{rows.shape[0]} rows for {index.numel()} choices, {_FINALIZE} takes one for each",
        ),
        (rows.numel() > 0, "rows are empty"),
    )
