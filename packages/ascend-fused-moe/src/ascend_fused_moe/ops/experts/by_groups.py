"""The experts as two grouped products and a sum, without a look at the ids on the host.

What multiplies, and what brings the rows in the order of experts, differs by implementation.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from ascend_ops_core.ops.linear import linear

from ascend_fused_moe.ops.experts.reference import gated

Product = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]
"""Rows ``[M, K]``, weights ``[E, N, K]`` and rows of each expert ``[E]`` to ``[M, N]``."""


def by_groups(
    x: torch.Tensor,
    w13: torch.Tensor,
    w2: torch.Tensor,
    weights: torch.Tensor,
    swiglu_limit: float | None,
    shared_w13: torch.Tensor | None,
    shared_w2: torch.Tensor | None,
    alpha: float,
    bias: float,
    permuted: tuple[torch.Tensor, torch.Tensor, torch.Tensor],
    product: Product,
) -> torch.Tensor:
    """See :func:`ascend_fused_moe.ops.experts.fused_experts`.

    Args:
        permuted: what :func:`ascend_fused_moe.permutation.permute` returns: rows in the order of
            experts, the row of each choice ``[T, k]``, and the number of rows of each expert.
        product: of rows with the weight of their expert.
    """
    rows, chosen, counts = permuted
    hidden = gated(product(rows, w13, counts), swiglu_limit, alpha, bias)
    parts = product(hidden, w2, counts)
    out = torch.zeros(x.shape, dtype=torch.float32, device=x.device)
    if shared_w13 is not None and shared_w2 is not None:
        out += linear(gated(linear(x, shared_w13), swiglu_limit, alpha, bias), shared_w2)
    # Choice by choice, since all at once would take top_k times the memory in float32.
    for j in range(chosen.shape[1]):
        out += parts.index_select(0, chosen[:, j]) * weights[:, j, None].float()
    return out.to(x.dtype)
