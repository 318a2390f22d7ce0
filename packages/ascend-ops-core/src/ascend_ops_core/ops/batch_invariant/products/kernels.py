"""Batch-invariant products in Triton.

A tile has the same size whatever the number of rows, a row never shares a sum with another, and
the blocks of the summed axis are added in order. So a row takes the same steps in every batch.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from ascend_ops_core.kernels import as_int64
from ascend_ops_core.launch import launch
from ascend_ops_core.tiling import next_power_of_two

# The smallest side of a product that the matrix unit takes.
_SMALLEST = 16


@triton.jit
def _matmul_kernel(
    x_ptr,
    y_ptr,
    added_ptr,
    out_ptr,
    rows,
    x_batch,
    x_row,
    y_batch,
    added_row,
    beta,
    alpha,
    programs,
    N: tl.constexpr,
    K: tl.constexpr,
    Y_ROW: tl.constexpr,
    TRANSPOSED: tl.constexpr,
    ADDED: tl.constexpr,
    SCALED: tl.constexpr,
    BM: tl.constexpr,
    BN: tl.constexpr,
    BK: tl.constexpr,
):
    strips: tl.constexpr = (N + BN - 1) // BN
    row_tiles = (rows + BM - 1) // BM
    for unit in range(tl.program_id(0), programs, tl.num_programs(0)):
        tile = unit // strips
        first_column = (unit - tile * strips) * BN
        batch = tile // row_tiles
        first_row = (tile - batch * row_tiles) * BM
        r = tl.arange(0, BM)
        c = tl.arange(0, BN)
        k = tl.arange(0, BK)
        real = r < rows - first_row
        wanted = c < N - first_column
        x_tile = x_ptr + as_int64(batch) * x_batch + as_int64(first_row) * x_row
        y_tile = y_ptr + as_int64(batch) * y_batch
        total = tl.zeros((BM, BN), tl.float32)
        for start in range(0, K, BK):
            inside = k < K - start
            x = tl.load(
                x_tile + start + r[:, None] * x_row + k[None, :],
                mask=real[:, None] & inside[None, :],
                other=0.0,
            )
            if TRANSPOSED:
                y = tl.trans(
                    tl.load(
                        y_tile
                        + as_int64(first_column) * Y_ROW
                        + start
                        + c[:, None] * Y_ROW
                        + k[None, :],
                        mask=wanted[:, None] & inside[None, :],
                        other=0.0,
                    )
                )
            else:
                y = tl.load(
                    y_tile
                    + as_int64(start) * Y_ROW
                    + first_column
                    + k[:, None] * Y_ROW
                    + c[None, :],
                    mask=inside[:, None] & wanted[None, :],
                    other=0.0,
                )
            total = tl.dot(x, y, total, input_precision="ieee")
        mask = real[:, None] & wanted[None, :]
        if SCALED:
            total = total * alpha
        if ADDED == "row":
            added = tl.load(added_ptr + first_column + c, mask=wanted, other=0.0).to(tl.float32)
            if SCALED:
                added = added * beta
            total = total + added[None, :]
        if ADDED == "matrix":
            added = tl.load(
                added_ptr
                + as_int64(first_row) * added_row
                + first_column
                + r[:, None] * added_row
                + c[None, :],
                mask=mask,
                other=0.0,
            ).to(tl.float32)
            if SCALED:
                added = added * beta
            total = total + added
        out_tile = out_ptr + (as_int64(batch) * rows + first_row) * N + first_column
        tl.store(
            out_tile + r[:, None] * N + c[None, :], total.to(out_ptr.dtype.element_ty), mask=mask
        )


def _tile_of(dtype: torch.dtype, columns: int, inner: int, added: str) -> tuple[int, int, int]:
    """Rows, columns and summed elements of a tile; nothing here may depend on the batch."""
    wide = dtype == torch.float32
    rows = 64 if wide or added else 128
    most_columns, most_inner = (128, 128) if wide or added else (256, 256)
    return (
        rows,
        min(max(next_power_of_two(columns), _SMALLEST), most_columns),
        min(max(next_power_of_two(inner), _SMALLEST), most_inner),
    )


def _product(
    x: torch.Tensor,
    y: torch.Tensor,
    added: torch.Tensor | None = None,
    beta: float = 1.0,
    alpha: float = 1.0,
) -> torch.Tensor:
    """``beta * added + alpha * x @ y`` for ``x [B, M, K]`` and ``y [B, K, N]``."""
    batches, rows, inner = x.shape
    columns = y.shape[-1]
    out = torch.empty((batches, rows, columns), dtype=x.dtype, device=x.device)
    if x.stride(-1) != 1:
        x = x.contiguous()
    transposed = y.stride(-2) == 1 and y.stride(-1) >= inner and columns > 1
    if not transposed and y.stride(-1) != 1:
        y = y.contiguous()
    kind = ""
    if added is not None:
        kind = "row" if added.dim() == 1 or added.shape[0] == 1 else "matrix"
        added = added.expand(*added.shape[:-1], columns)
        added = added.reshape(-1, columns) if added.stride(-1) == 1 else added.contiguous()
    bm, bn, bk = _tile_of(x.dtype, columns, inner, kind)
    programs = batches * -(-rows // bm) * -(-columns // bn)
    launch(
        _matmul_kernel,
        programs,
        {
            "x_ptr": x,
            "y_ptr": y,
            "added_ptr": x if added is None else added,
            "out_ptr": out,
            "rows": rows,
            "x_batch": x.stride(0),
            "x_row": x.stride(1),
            "y_batch": y.stride(0),
            "added_row": 0 if added is None else added.stride(0),
            "beta": float(beta),
            "alpha": float(alpha),
            "programs": programs,
        },
        {
            "N": columns,
            "K": inner,
            "Y_ROW": y.stride(-1) if transposed else y.stride(-2),
            "TRANSPOSED": transposed,
            "ADDED": kind,
            "SCALED": (beta, alpha) != (1.0, 1.0),
            "BM": bm,
            "BN": bn,
            "BK": bk,
        },
        cube=True,
    )
    return out


def mm_batch_invariant(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """See :func:`ascend_ops_core.ops.batch_invariant.mm_batch_invariant`."""
    return _product(x[None], y[None])[0]


def bmm_batch_invariant(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """See :func:`ascend_ops_core.ops.batch_invariant.bmm_batch_invariant`."""
    return _product(x, y)


def addmm_batch_invariant(
    added: torch.Tensor, x: torch.Tensor, y: torch.Tensor, beta: float, alpha: float
) -> torch.Tensor:
    """See :func:`ascend_ops_core.ops.batch_invariant.addmm_batch_invariant`."""
    return _product(x[None], y[None], added, beta, alpha)[0]


def linear_batch_invariant(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None
) -> torch.Tensor:
    """See :func:`ascend_ops_core.ops.batch_invariant.linear_batch_invariant`."""
    rows = x.reshape(1, -1, x.shape[-1])
    return _product(rows, weight.T[None], bias).view(*x.shape[:-1], weight.shape[0])
