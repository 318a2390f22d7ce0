"""Attention residuals for a CPU: one pass for a token's scores, one for the mixture."""

from __future__ import annotations

import numpy as np
import torch
from numba import njit, prange

from ascend_ops_core.cpu_numeric import FASTMATH, as_numpy, narrow, widen

# From this many values on the thread pool pays for itself.
_PARALLEL_FROM = 1 << 14


def supports(prefix: torch.Tensor, blocks: torch.Tensor) -> bool:
    """Contiguous, non-empty float32 or bfloat16."""
    return (
        prefix.dtype in (torch.float32, torch.bfloat16)
        and prefix.is_contiguous()
        and blocks.is_contiguous()
        and prefix.numel() > 0
    )


def attn_res(
    prefix: torch.Tensor,
    update: torch.Tensor | None,
    blocks: torch.Tensor,
    norm_weight: torch.Tensor,
    proj: torch.Tensor,
    eps: float,
) -> tuple[torch.Tensor, torch.Tensor]:
    """See :func:`ascend_ops_core.ops.attention_residual.add_attn_res`; None adds nothing."""
    out = torch.empty_like(prefix)
    total = prefix if update is None else prefix + update
    values = prefix.numel() * (blocks.shape[0] + 1)
    (_mix_parallel if values >= _PARALLEL_FROM else _mix)(
        as_numpy(total),
        as_numpy(blocks),
        as_numpy(norm_weight.float() * proj.float()),
        np.float32(eps),
        as_numpy(out),
    )
    return out, total


def _mix_body(prefix, blocks, query, eps, out):  # type: ignore[no-untyped-def]
    tokens, hidden = prefix.shape
    n = blocks.shape[0]
    for t in prange(tokens):
        shares = np.empty(n + 1, dtype=np.float32)
        top = np.float32(-np.inf)
        for j in range(n + 1):
            source = blocks[j, t] if j < n else prefix[t]
            squares = np.float32(0)
            score = np.float32(0)
            for d in range(hidden):
                value = widen(source[d])
                squares += value * value
                score += value * query[d]
            shares[j] = score / np.sqrt(squares / np.float32(hidden) + eps)
            # A NaN compares as smaller; it reaches the mixture through its own share.
            top = shares[j] if shares[j] > top else top
        divisor = np.float32(0)
        for j in range(n + 1):
            shares[j] = np.exp(shares[j] - top)
            divisor += shares[j]
        row = np.zeros(hidden, dtype=np.float32)
        for j in range(n + 1):
            source = blocks[j, t] if j < n else prefix[t]
            share = shares[j] / divisor
            for d in range(hidden):
                row[d] += share * widen(source[d])
        for d in range(hidden):
            out[t, d] = narrow(out, row[d])


_mix = njit(fastmath=FASTMATH, cache=True)(_mix_body)
_mix_parallel = njit(fastmath=FASTMATH, parallel=True, cache=True)(_mix_body)
