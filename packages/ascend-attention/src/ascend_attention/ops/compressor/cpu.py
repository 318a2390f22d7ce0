"""State rows of a few tokens on a CPU: one product that adds the position bias itself."""

from __future__ import annotations

import numpy as np
import torch
from ascend_ops_core.cpu_numeric import FASTMATH, as_numpy
from ascend_ops_core.cpu_products import ROWS_PER_TASK, product, widen_rows
from numba import njit, prange

# With more tokens the product is a GEMM.
_FEW_TOKENS = 16


def supports(hidden: torch.Tensor, wkv_wgate: torch.Tensor, ape: torch.Tensor) -> bool:
    """A few contiguous float32 or bfloat16 tokens, weights of their dtype, a float32 bias."""
    return (
        0 < hidden.shape[0] <= _FEW_TOKENS
        and hidden.dtype in (torch.float32, torch.bfloat16)
        and hidden.is_contiguous()
        and wkv_wgate.dtype == hidden.dtype
        and wkv_wgate.is_contiguous()
        and ape.dtype == torch.float32
        and ape.is_contiguous()
    )


def project_states(
    hidden: torch.Tensor, wkv_wgate: torch.Tensor, ape: torch.Tensor, position: torch.Tensor
) -> torch.Tensor:
    """See :func:`ascend_attention.ops.compressor.project_states`."""
    out = torch.empty((hidden.shape[0], wkv_wgate.shape[0]), dtype=torch.float32)
    _project(
        as_numpy(hidden),
        as_numpy(wkv_wgate),
        as_numpy(ape),
        as_numpy(position.contiguous()),
        as_numpy(out),
    )
    return out


@njit(fastmath=FASTMATH, parallel=True, cache=True)
def _project(hidden, weight, ape, position, out):  # type: ignore[no-untyped-def]
    tokens = hidden.shape[0]
    ratio, series = ape.shape
    wide = np.empty(hidden.shape, dtype=np.float32)
    widen_rows(hidden, wide)
    rows = weight.shape[0]
    for task in prange((rows + ROWS_PER_TASK - 1) // ROWS_PER_TASK):
        first = task * ROWS_PER_TASK
        last = min(rows, first + ROWS_PER_TASK)
        product(wide, 0, tokens, weight, first, last, out, first)
        for t in range(tokens):
            for n in range(max(first, series), last):
                out[t, n] += ape[position[t] % ratio, n - series]
