"""Definition of the routed experts: one dense product per expert that was hit."""

from __future__ import annotations

import math

import torch
from ascend_ops_core.ops.activation import silu_and_mul_with_clamp, swiglu_oai_and_mul
from ascend_ops_core.ops.linear import linear


def gated(gate_up: torch.Tensor, limit: float | None, alpha: float, bias: float) -> torch.Tensor:
    """The activation of :func:`ascend_fused_moe.ops.experts.fused_experts`.

    Args:
        gate_up: ``[M, 2 * I]``.
        limit: of gate and up, or None.
        alpha: factor in the sigmoid.
        bias: added to up.

    Returns:
        ``[M, I]`` in the dtype of ``gate_up``.
    """
    if alpha == 1 and bias == 0:
        return silu_and_mul_with_clamp(gate_up, limit)
    return swiglu_oai_and_mul(gate_up, alpha, limit or math.inf, bias, False)


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
    """See :func:`ascend_fused_moe.ops.experts.fused_experts`."""
    out = torch.zeros(x.shape, dtype=torch.float32, device=x.device)
    if shared_w13 is not None and shared_w2 is not None:
        hidden = gated(linear(x, shared_w13), swiglu_limit, alpha, bias)
        out += linear(hidden, shared_w2)
    top_k = ids.shape[1]
    order = ids.flatten().argsort(stable=True)
    counts = torch.bincount(ids.flatten(), minlength=w13.shape[0]).tolist()
    start = 0
    for expert, count in enumerate(counts):
        if not count:
            continue
        pairs = order[start : start + count]
        start += count
        tokens = pairs // top_k
        hidden = gated(linear(x[tokens], w13[expert]), swiglu_limit, alpha, bias)
        part = linear(hidden, w2[expert]).float() * weights.flatten()[pairs].unsqueeze(-1)
        out.index_add_(0, tokens, part)
    return out.to(x.dtype)
