"""Operators whose result for a row has the same bits whatever else is in the batch.

The order of every sum depends on the summed axis alone: not on the number of rows, not on where a
row stands. On a CPU the definition runs, which keeps that promise for any number of threads; it is
slower than torch's products. :mod:`.mode` puts these operators in the place of torch's own.
"""

from __future__ import annotations

from ascend_ops_core.ops.batch_invariant.products import (
    addmm_batch_invariant,
    bmm_batch_invariant,
    linear_batch_invariant,
    matmul_batch_invariant,
    mm_batch_invariant,
)
from ascend_ops_core.ops.batch_invariant.reductions import (
    mean_batch_invariant,
    rms_norm_batch_invariant,
    softmax_batch_invariant,
)

__all__ = [
    "addmm_batch_invariant",
    "bmm_batch_invariant",
    "linear_batch_invariant",
    "matmul_batch_invariant",
    "mean_batch_invariant",
    "mm_batch_invariant",
    "rms_norm_batch_invariant",
    "softmax_batch_invariant",
]
