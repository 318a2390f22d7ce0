"""Grouped products of float rows with quantised weights, for a CPU.

A weight's row becomes float32 in the cache, meets all rows of its group and is forgotten, so what
is read is the stored form and no weight has a float32 copy.
"""

from __future__ import annotations

import numpy as np
import torch
from ascend_ops_core.cpu_dequantize import (
    KINDS,
    code_bytes,
    dequantize_rows,
    scale_array,
)
from ascend_ops_core.cpu_numeric import FASTMATH, as_numpy, narrow
from ascend_ops_core.cpu_products import widen_rows
from ascend_ops_core.cpu_tiles import tiled_product
from ascend_ops_core.ops.quantization.blocks import COLUMNS
from ascend_ops_core.ops.quantization.mx import BLOCK
from numba import njit, prange

_ROWS_PER_TASK = 16
# Rows of a group that share one tile of float32 results.
_ROWS_AT_ONCE = 64
_CODES = {
    "int8": "int8",
    "int4": "int4",
    "fp8_block": "float8_e4m3fn",
    "mxfp8": "float8_e4m3fn",
    "mxfp4": "float4_e2m1fn",
}


def supports(
    x: torch.Tensor,
    weight: torch.Tensor,
    weight_scale: torch.Tensor,
    rows: str,
    dtype: torch.dtype,
) -> bool:
    """Float rows and results, both float32 or bfloat16; contiguous weights and scales."""
    floats = (torch.float32, torch.bfloat16)
    return (
        rows == "float"
        and x.dtype in floats
        and dtype in floats
        and weight.is_contiguous()
        and weight_scale.is_contiguous()
        and weight.numel() > 0
    )


def grouped_matmul_quantized(
    x: torch.Tensor,
    weight: torch.Tensor,
    weight_scale: torch.Tensor,
    groups: torch.Tensor,
    cumulative: bool,
    bias: torch.Tensor | None,
    weights: str,
    dtype: torch.dtype,
) -> torch.Tensor:
    """See :func:`ascend_fused_moe.ops.grouped_mlp.grouped_matmul_quantized`, rows being float."""
    count, outputs = weight.shape[:2]
    out = torch.empty((x.shape[0], outputs), dtype=dtype)
    ends = (groups if cumulative else groups.cumsum(0)).long().contiguous()
    scale = weight_scale if weight_scale.dim() == 3 else weight_scale.unsqueeze(-1)
    shares = {"fp8_block": COLUMNS, "mxfp8": BLOCK, "mxfp4": BLOCK}
    columns = shares.get(weights) or x.shape[1] // scale.shape[2]
    # Without a map row n has row n of the scales.
    blocked = np.arange(outputs if weights == "fp8_block" else 0) // COLUMNS
    added = torch.empty((count, 0)) if bias is None else bias.float().contiguous()
    _product(
        as_numpy(x.contiguous()),
        code_bytes(weight),
        KINDS[_CODES[weights]],
        scale_array(scale.contiguous()),
        blocked.astype(np.int32),
        columns,
        as_numpy(ends),
        as_numpy(added),
        as_numpy(out),
    )
    return out


@njit(fastmath=FASTMATH, parallel=True, cache=True)
def _product(  # type: ignore[no-untyped-def]
    x, codes, kind, scale, scale_rows, columns, ends, bias, out
):
    tokens, width = x.shape
    wide = np.empty((tokens, width), dtype=np.float32)
    widen_rows(x, wide)
    outputs = codes.shape[1]
    strips = (outputs + _ROWS_PER_TASK - 1) // _ROWS_PER_TASK
    used = np.empty(ends.shape[0], dtype=np.int64)
    count = 0
    for g in range(ends.shape[0]):
        if ends[g] > (ends[g - 1] if g > 0 else 0):
            used[count] = g
            count += 1
    for task in prange(count * strips):
        g = used[task // strips]
        first = task % strips * _ROWS_PER_TASK
        last = min(outputs, first + _ROWS_PER_TASK)
        tile = np.empty((_ROWS_PER_TASK, width), dtype=np.float32)
        dequantize_rows(codes[g], kind, scale[g], scale_rows, columns, 0, first, last, tile)
        sums = np.empty((_ROWS_AT_ONCE, _ROWS_PER_TASK), dtype=np.float32)
        start = ends[g - 1] if g > 0 else 0
        for begin in range(start, ends[g], _ROWS_AT_ONCE):
            end = min(ends[g], begin + _ROWS_AT_ONCE)
            tiled_product(wide, begin, end, tile, 0, last - first, sums, 0)
            for r in range(end - begin):
                for n in range(last - first):
                    value = sums[r, n]
                    if bias.shape[1] > 0:
                        value += bias[g, first + n]
                    out[begin + r, first + n] = narrow(out, value)
