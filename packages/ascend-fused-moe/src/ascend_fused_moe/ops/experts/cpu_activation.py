"""What lies between the two products of an expert."""

from __future__ import annotations

import numpy as np
from ascend_ops_core.cpu_numeric import FASTMATH, exp_f32
from numba import njit


# With numpy's division, as Python's checks for zero and so keeps loops from being vectorised.
@njit(fastmath=FASTMATH, error_model="numpy", cache=True)
def gated(gate, up, how):  # type: ignore[no-untyped-def]
    """The activation in float32, of ``how``: limit, alpha, bias."""
    limit, alpha, bias = how
    if gate > limit:
        gate = limit
    if up > limit:
        up = limit
    elif up < -limit:
        up = -limit
    return gate / (np.float32(1) + exp_f32(-alpha * gate)) * (up + bias)
