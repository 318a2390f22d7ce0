"""The Markov head's step in Triton: a strip of the vocabulary is one unit of work.

The requests are few and the vocabulary is long, so a program reads its strip of the projection once
for all of them.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from ascend_ops_core.kernels import as_int64
from ascend_ops_core.launch import launch
from ascend_ops_core.tiling import next_power_of_two

# The smallest side of a product that the matrix unit takes, and the largest tiles that fit it.
_SMALLEST = 16
_MOST_ROWS = 64
_MOST_INNER = 128
_COLUMNS = 128


@triton.jit
def _markov_logits_kernel(
    base_ptr,
    rows_ptr,
    projection_ptr,
    out_ptr,
    scale,
    rows,
    programs,
    D: tl.constexpr,
    K: tl.constexpr,
    BM: tl.constexpr,
    BN: tl.constexpr,
    BK: tl.constexpr,
):
    strips: tl.constexpr = (D + BN - 1) // BN
    r = tl.arange(0, BM)
    c = tl.arange(0, BN)
    k = tl.arange(0, BK)
    for unit in range(tl.program_id(0), programs, tl.num_programs(0)):
        tile = unit // strips
        column = (unit - tile * strips) * BN
        row = tile * BM
        real = r < rows - row
        wanted = c < D - column
        total = tl.zeros((BM, BN), tl.float32)
        for start in range(0, K, BK):
            inside = k < K - start
            x = tl.load(
                rows_ptr + as_int64(row) * K + start + r[:, None] * K + k[None, :],
                mask=real[:, None] & inside[None, :],
                other=0.0,
            )
            y = tl.load(
                projection_ptr + as_int64(column) * K + start + c[:, None] * K + k[None, :],
                mask=wanted[:, None] & inside[None, :],
                other=0.0,
            )
            total = tl.dot(x, tl.trans(y), total, input_precision="ieee")
        mask = real[:, None] & wanted[None, :]
        place = as_int64(row) * D + column + r[:, None] * D + c[None, :]
        base = tl.load(base_ptr + place, mask=mask, other=0.0).to(tl.float32)
        tl.store(out_ptr + place, base + total * scale, mask=mask)


def markov_logits(
    base: torch.Tensor,
    tokens: torch.Tensor,
    embedding: torch.Tensor,
    projection: torch.Tensor,
    scale: float,
) -> torch.Tensor:
    """See :func:`ascend_ops_core.ops.markov_head.markov_logits`."""
    rows, columns = base.shape
    inner = embedding.shape[1]
    out = torch.empty((rows, columns), dtype=torch.float32, device=base.device)
    most_rows = min(max(next_power_of_two(rows), _SMALLEST), _MOST_ROWS)
    most_inner = min(max(next_power_of_two(inner), _SMALLEST), _MOST_INNER)
    programs = -(-columns // _COLUMNS) * -(-rows // most_rows)
    arguments = {
        "base_ptr": base.contiguous(),
        "rows_ptr": embedding[tokens],
        "projection_ptr": projection.contiguous(),
        "out_ptr": out,
        "scale": float(scale),
        "rows": rows,
        "programs": programs,
    }
    constants = {
        "D": columns,
        "K": inner,
        "BM": most_rows,
        "BN": _COLUMNS,
        "BK": most_inner,
    }
    launch(_markov_logits_kernel, programs, arguments, constants, cube=True)
    return out
