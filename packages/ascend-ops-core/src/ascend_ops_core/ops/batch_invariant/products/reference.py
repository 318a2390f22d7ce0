"""Definitions of the batch-invariant products; their sums have the order of ``ordered_sum``."""

from __future__ import annotations

import torch

from ascend_ops_core.ops.batch_invariant.ordered_sum import BLOCK, fold

# Products that exist at once; elementwise work may be cut anywhere.
_PRODUCTS = 1 << 24


def _product(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """``x @ y`` in float32."""
    x_f32, y_f32 = x.float(), y.float()
    total = torch.zeros(x.shape[0], y.shape[1], dtype=torch.float32, device=x.device)
    step = max(1, _PRODUCTS // max(1, BLOCK * y.shape[1]))
    for first in range(0, x.shape[0], step):
        part = x_f32[first : first + step]
        for k in range(0, x.shape[1], BLOCK):
            terms = part.T[k : k + BLOCK, :, None] * y_f32[k : k + BLOCK, None, :]
            total[first : first + step] += fold(terms)
    return total


def mm_batch_invariant(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """See :func:`ascend_ops_core.ops.batch_invariant.mm_batch_invariant`."""
    return _product(x, y).to(x.dtype)


def bmm_batch_invariant(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """See :func:`ascend_ops_core.ops.batch_invariant.bmm_batch_invariant`."""
    out = torch.empty(x.shape[0], x.shape[1], y.shape[2], dtype=x.dtype, device=x.device)
    for b in range(x.shape[0]):
        out[b] = _product(x[b], y[b])
    return out


def addmm_batch_invariant(
    added: torch.Tensor, x: torch.Tensor, y: torch.Tensor, beta: float, alpha: float
) -> torch.Tensor:
    """See :func:`ascend_ops_core.ops.batch_invariant.addmm_batch_invariant`."""
    return (_product(x, y) * alpha + added.float() * beta).to(x.dtype)


def linear_batch_invariant(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None
) -> torch.Tensor:
    """See :func:`ascend_ops_core.ops.batch_invariant.linear_batch_invariant`."""
    y = _product(x.reshape(-1, x.shape[-1]), weight.T)
    if bias is not None:
        y = y + bias.float()
    return y.to(x.dtype).view(*x.shape[:-1], weight.shape[0])
