"""The L2 norm on a CPU: one pass per row."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from ascend_ops_core.cpu_numeric import FASTMATH, as_numpy, narrow, widen
from numba import njit, prange

_DTYPES = (torch.float32, torch.bfloat16)
# Below this many elements starting the thread pool costs more than the work itself.
_PARALLEL_FROM = 1 << 15


def supports(x: torch.Tensor, dtype: torch.dtype) -> bool:
    """float32 or bfloat16 in and out, contiguous."""
    return x.dtype in _DTYPES and dtype in _DTYPES and x.is_contiguous() and x.numel() > 0


def l2_norm(x: torch.Tensor, eps: float, scale: float, dtype: torch.dtype) -> torch.Tensor:
    """See :func:`ascend_attention.ops.l2_norm.l2_norm`."""
    out = torch.empty(x.shape, dtype=dtype)
    width = x.shape[-1]
    kernel = _l2_parallel if x.numel() >= _PARALLEL_FROM else _l2
    kernel(
        as_numpy(x.view(-1, width)),
        np.float32(eps),
        np.float32(scale),
        as_numpy(out.view(-1, width)),
    )
    return out


def _l2_body(x, eps, scale, out):  # type: ignore[no-untyped-def]
    rows, width = x.shape
    for r in prange(rows):
        total = np.float32(0)
        for d in range(width):
            value = widen(x[r, d])
            total += value * value
        factor = scale / np.sqrt(total + eps)
        for d in range(width):
            out[r, d] = narrow(out, widen(x[r, d]) * factor)


_l2: Any = njit(fastmath=FASTMATH, error_model="numpy", cache=True)(_l2_body)
_l2_parallel: Any = njit(fastmath=FASTMATH, error_model="numpy", parallel=True, cache=True)(
    _l2_body
)
