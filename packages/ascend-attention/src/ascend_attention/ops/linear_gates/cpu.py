"""Gates of Gated DeltaNet on a CPU: one call for the few values of a decode step."""

from __future__ import annotations

import math

import numpy as np
import torch
from ascend_ops_core.cpu_numeric import FASTMATH, as_numpy, exp_f32, widen
from numba import njit

_DTYPES = (torch.float32, torch.bfloat16)
# With more values torch's threads and vectors are faster than a call of log1p for each.
_MOST_VALUES = 1 << 11


def supports(a: torch.Tensor, b: torch.Tensor, beta_dtype: torch.dtype) -> bool:
    """A few contiguous values of float32 or bfloat16, with results in float32."""
    return (
        beta_dtype == torch.float32
        and 0 < a.numel() <= _MOST_VALUES
        and a.dtype in _DTYPES
        and b.dtype == a.dtype
        and a.is_contiguous()
        and b.is_contiguous()
    )


def gdn_gates(
    a: torch.Tensor,
    b: torch.Tensor,
    a_log: torch.Tensor,
    dt_bias: torch.Tensor,
    beta_dtype: torch.dtype,
) -> tuple[torch.Tensor, torch.Tensor]:
    """See :func:`ascend_attention.ops.linear_gates.gdn_gates`."""
    decay, beta = torch.empty(a.shape), torch.empty(a.shape)
    _gdn(
        as_numpy(a),
        as_numpy(b),
        as_numpy(a_log.float().contiguous()),
        as_numpy(dt_bias.float().contiguous()),
        as_numpy(decay),
        as_numpy(beta),
    )
    return decay, beta


@njit(fastmath=FASTMATH, error_model="numpy", cache=True)
def _gdn(a, b, a_log, dt_bias, decay, beta):  # type: ignore[no-untyped-def]
    tokens, heads = a.shape
    for t in range(tokens):
        for h in range(heads):
            x = widen(a[t, h]) + dt_bias[h]
            if x <= np.float32(20):
                x = np.float32(math.log1p(math.exp(x)))
            decay[t, h] = -exp_f32(a_log[h]) * x
            beta[t, h] = np.float32(1) / (np.float32(1) + exp_f32(-widen(b[t, h])))
