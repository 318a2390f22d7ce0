"""Products with quantised weights for a CPU: each row is read once, in its stored form."""

from __future__ import annotations

import numpy as np
import torch
from numba import njit, prange

from ascend_ops_core.cpu_dequantize import (
    KINDS,
    code_bytes,
    dequantize_rows,
    row_map,
    scale_array,
)
from ascend_ops_core.cpu_numeric import FASTMATH, as_numpy, narrow
from ascend_ops_core.cpu_products import widen_rows
from ascend_ops_core.cpu_tiles import tiled_product

_ROWS_PER_TASK = 16
# Tokens that meet a tile of float32 rows before the next tile is made.
_TOKENS_AT_ONCE = 1024


def supports(x: torch.Tensor, weight: torch.Tensor, scale: torch.Tensor) -> bool:
    """float32 or bfloat16 tokens; contiguous weights and scales."""
    return (
        x.dtype in (torch.float32, torch.bfloat16)
        and weight.is_contiguous()
        and scale.is_contiguous()
        and weight.numel() > 0
    )


def dequantized_linear(
    x: torch.Tensor,
    weight: torch.Tensor,
    scale: torch.Tensor,
    scale_rows: torch.Tensor | None,
    columns: int,
    first_column: int,
    codes: str,
) -> torch.Tensor:
    """See :func:`ascend_ops_core.ops.dequantized_linear.dequantized_linear`."""
    out = x.new_empty((x.shape[0], weight.shape[0]))
    given = x.contiguous()
    factors = scale_array(scale)
    for start in range(0, x.shape[0], _TOKENS_AT_ONCE):
        part = slice(start, start + _TOKENS_AT_ONCE)
        _product(
            as_numpy(given[part]),
            code_bytes(weight),
            KINDS[codes],
            factors,
            row_map(scale_rows),
            columns,
            first_column,
            as_numpy(out[part]),
        )
    return out


@njit(fastmath=FASTMATH, parallel=True, cache=True)
def _product(  # type: ignore[no-untyped-def]
    x, codes, kind, scale, scale_rows, columns, first_column, out
):
    tokens, width = x.shape
    wide = np.empty((tokens, width), dtype=np.float32)
    widen_rows(x, wide)
    rows = codes.shape[0]
    for task in prange((rows + _ROWS_PER_TASK - 1) // _ROWS_PER_TASK):
        first = task * _ROWS_PER_TASK
        last = min(rows, first + _ROWS_PER_TASK)
        tile = np.empty((_ROWS_PER_TASK, width), dtype=np.float32)
        dequantize_rows(codes, kind, scale, scale_rows, columns, first_column, first, last, tile)
        sums = np.empty((tokens, _ROWS_PER_TASK), dtype=np.float32)
        tiled_product(wide, 0, tokens, tile, 0, last - first, sums, 0)
        for t in range(tokens):
            for n in range(last - first):
                out[t, first + n] = narrow(out, sums[t, n])
