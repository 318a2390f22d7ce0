"""Routed experts by torch's products, a pair of them per expert that was hit."""

from __future__ import annotations

import numpy as np
import torch
from ascend_ops_core.cpu_numeric import FASTMATH, as_numpy, narrow, widen
from numba import njit, prange
from torch.nn import functional as F

from ascend_fused_moe.ops.experts.cpu_pairs import group


def with_torch(
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
) -> torch.Tensor | None:
    """See :func:`ascend_fused_moe.ops.experts.cpu.fused_experts`."""
    low, high = ids.aminmax()
    if int(low) < 0 or int(high) >= w13.shape[0]:
        return None
    out = torch.empty_like(x, memory_format=torch.contiguous_format)
    if shared_w13 is None or shared_w2 is None:
        added = x.new_empty((0, x.shape[1]))
    else:
        added = _swiglu(x @ shared_w13.T, swiglu_limit, alpha, bias) @ shared_w2.T
    flat = ids.long().flatten().contiguous()
    order, experts, starts = group(as_numpy(flat), w13.shape[0], max(1, flat.shape[0]))
    tokens = torch.from_numpy(order // ids.shape[1])
    pairs = x.new_empty((flat.shape[0], x.shape[1]))
    bounds = starts.tolist()
    for expert, begin, end in zip(experts.tolist(), bounds[:-1], bounds[1:], strict=True):
        hidden = _swiglu(x[tokens[begin:end]] @ w13[expert].T, swiglu_limit, alpha, bias)
        torch.mm(hidden, w2[expert].T, out=pairs[begin:end])
    _combine(
        as_numpy(pairs),
        order,
        as_numpy(weights.float().contiguous()),
        as_numpy(added),
        as_numpy(out),
    )
    return out


def _swiglu(gate_up: torch.Tensor, limit: float | None, alpha: float, bias: float) -> torch.Tensor:
    # torch's own: its threads and numba's would wait for each other between two products.
    # In float32, since every rounding to bfloat16 between the products adds up over the experts.
    gate, up = gate_up.float().chunk(2, dim=-1)
    if limit:
        gate, up = gate.clamp(max=limit), up.clamp(-limit, limit)
    if alpha == 1 and bias == 0:
        activated = F.silu(gate).mul_(up)
    else:
        activated = (gate * alpha).sigmoid_().mul_(gate).mul_(up + bias)
    return activated.to(gate_up.dtype)


@njit(fastmath=FASTMATH, parallel=True, cache=True)
def _combine(pairs, order, weights, added, out):  # type: ignore[no-untyped-def]
    """``out[t]`` is the weighted sum of the token's pairs, and ``added[t]`` if there is one."""
    tokens, width = out.shape
    top_k = weights.shape[1]
    places = np.empty(order.shape[0], dtype=np.int64)
    for p in range(order.shape[0]):
        places[order[p]] = p
    for t in prange(tokens):
        sums = np.zeros(width, dtype=np.float32)
        if added.shape[0] > 0:
            for d in range(width):
                sums[d] = widen(added[t, d])
        for j in range(top_k):
            row = pairs[places[t * top_k + j]]
            weight = weights[t, j]
            for d in range(width):
                sums[d] += weight * widen(row[d])
        for d in range(width):
            out[t, d] = narrow(out, sums[d])
