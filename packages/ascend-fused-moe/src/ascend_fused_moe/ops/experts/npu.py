"""The experts by torch_npu's grouped products, and the limits of every NPU implementation.

Not run on hardware; checked against torch_npu's schemas.
"""

from __future__ import annotations

import torch
from ascend_ops_core.devices import DeviceFacts, current_facts
from ascend_ops_core.support import Support, first_refusal

from ascend_fused_moe.ops.experts.by_groups import by_groups
from ascend_fused_moe.permutation import permute

_HALVES = (torch.float16, torch.bfloat16)
_FLOATS = (*_HALVES, torch.float32)
# Families for which npu_moe_init_routing_v2 is documented.
_INIT_ROUTING = ("A2", "A3")
_LEAST_EXPERTS, _MAX_EXPERTS = 2, 1024
_INNER_LIMIT = 65536
_BY_ROWS, _ONE_RESULT, _COUNTS, _UNQUANTIZED = 0, 2, 1, -1


def fused_experts(
    x: torch.Tensor,
    w13: torch.Tensor,
    w2: torch.Tensor,
    weights: torch.Tensor,
    ids: torch.Tensor,
    swiglu_limit: float | None,
    shared_w13: torch.Tensor | None,
    shared_w2: torch.Tensor | None,
    alpha: float,
    bias: float,
) -> torch.Tensor:
    """``npu_moe_init_routing_v2`` or, on A5, a sort, two ``npu_grouped_matmul``, a sum in float32.

    See :func:`ascend_fused_moe.ops.experts.fused_experts`.
    """
    permuted = _permuted(x, ids, w13.shape[0])
    shared = shared_w13, shared_w2
    return by_groups(x, w13, w2, weights, swiglu_limit, *shared, alpha, bias, permuted, _grouped)


def _permuted(
    x: torch.Tensor, ids: torch.Tensor, experts: int
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Rows in the order of experts, the row of each choice ``[T, k]``, and rows of each expert."""
    if current_facts().family not in _INIT_ROUTING:
        return permute(x, ids.long(), experts)
    rows, positions, counts, _ = torch.ops.npu.npu_moe_init_routing_v2(
        x,
        ids.int(),
        active_num=ids.numel(),
        expert_num=experts,
        expert_tokens_num_type=_COUNTS,
        expert_tokens_num_flag=True,
        active_expert_range=[0, experts],
        quant_mode=_UNQUANTIZED,
    )
    return rows, positions.view(ids.shape), counts


def _grouped(x: torch.Tensor, weight: torch.Tensor, counts: torch.Tensor) -> torch.Tensor:
    """``x[rows of e] @ weight[e].T``, the rows in order of experts: one tensor each."""
    result: list[torch.Tensor] = torch.ops.npu.npu_grouped_matmul(
        [x],
        [weight.transpose(1, 2)],
        group_list=counts,
        split_item=_ONE_RESULT,
        group_type=_BY_ROWS,
        group_list_type=_COUNTS,
    )
    return result[0]


def supports_fused_experts(
    facts: DeviceFacts,
    x: torch.Tensor,
    w13: torch.Tensor,
    w2: torch.Tensor,
    weights: torch.Tensor,
    ids: torch.Tensor,
    swiglu_limit: float | None,
    shared_w13: torch.Tensor | None,
    shared_w2: torch.Tensor | None,
    alpha: float,
    bias: float,
) -> Support:
    """One float dtype, on A5 of 16 bits; 2 to 1024 experts; sizes below 65536.

    Limits are those of torch_npu's documentation. For A3 it does not list npu_grouped_matmul, but
    npu_moe_init_routing_v2, whose result has no other use; A5 is from CANN's aclnnGroupedMatmulV4.
    """
    dtypes = _FLOATS if facts.family in _INIT_ROUTING else _HALVES
    return first_refusal(
        (
            facts.family in (*_INIT_ROUTING, "A5"),
            f"{facts.family}, npu_grouped_matmul is documented for A2, A3, A5",
        ),
        (
            x.dtype in dtypes,
            f"x of {x.dtype}, npu_grouped_matmul on {facts.family} takes "
            + ", ".join(str(one).removeprefix("torch.") for one in dtypes),
        ),
        (
            w13.dtype == w2.dtype == x.dtype,
            f"weights of {w13.dtype} and {w2.dtype} beside x of {x.dtype}, npu_grouped_matmul "
            "takes one dtype",
        ),
        (
            _LEAST_EXPERTS <= w13.shape[0] <= _MAX_EXPERTS,
            f"{w13.shape[0]} experts, npu_grouped_matmul takes {_LEAST_EXPERTS} to {_MAX_EXPERTS} "
            "groups",
        ),
        *(
            (
                size < _INNER_LIMIT,
                f"a weight of {size} columns, npu_grouped_matmul takes fewer than {_INNER_LIMIT}",
            )
            for size in (w13.shape[2], w2.shape[2])
        ),
        (x.numel() > 0, "x is empty"),
    )


def supports_fused_experts_triton(
    facts: DeviceFacts,
    x: torch.Tensor,
    w13: torch.Tensor,
    w2: torch.Tensor,
    weights: torch.Tensor,
    ids: torch.Tensor,
    swiglu_limit: float | None,
    shared_w13: torch.Tensor | None,
    shared_w2: torch.Tensor | None,
    alpha: float,
    bias: float,
) -> Support:
    """One float dtype, dense weights of routed experts."""
    return first_refusal(
        (x.dtype in _FLOATS, f"x of {x.dtype}, the kernel takes float16, bfloat16, float32"),
        (
            w13.dtype == w2.dtype == x.dtype,
            f"weights of {w13.dtype} and {w2.dtype} beside x of {x.dtype}, the kernel takes one "
            "dtype",
        ),
        (
            w13.is_contiguous() and w2.is_contiguous(),
            f"weights with strides {list(w13.stride())} and {list(w2.stride())}, the kernel takes "
            "dense ones",
        ),
    )
