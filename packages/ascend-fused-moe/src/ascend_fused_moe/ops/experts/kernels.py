"""The experts by Triton's grouped product, for what torch_npu's refuses."""

from __future__ import annotations

import torch

from ascend_fused_moe.ops.experts.by_groups import by_groups
from ascend_fused_moe.ops.grouped_mlp.kernels import grouped_matmul
from ascend_fused_moe.permutation import permute


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
    """A sort, two grouped products, a sum in float32.

    See :func:`ascend_fused_moe.ops.experts.fused_experts`.
    """
    permuted = permute(x, ids.long(), w13.shape[0])
    shared = shared_w13, shared_w2
    return by_groups(x, w13, w2, weights, swiglu_limit, *shared, alpha, bias, permuted, _product)


def _product(x: torch.Tensor, weight: torch.Tensor, counts: torch.Tensor) -> torch.Tensor:
    return grouped_matmul(x, weight, counts, False, None)
