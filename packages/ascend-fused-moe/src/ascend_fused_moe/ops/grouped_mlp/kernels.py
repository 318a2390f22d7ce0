"""The grouped product of floats in Triton: a strip of one group's weight against all its rows."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from ascend_ops_core.kernels import as_int64
from ascend_ops_core.launch import launch
from ascend_ops_core.tiling import next_power_of_two

# The smallest side of a product that the matrix unit takes.
_SMALLEST = 16
_MOST_ROWS, _MOST_COLUMNS, _MOST_INNER = 64, 128, 128


@triton.jit
def _grouped_matmul_kernel(
    x_ptr,
    weight_ptr,
    ends_ptr,
    bias_ptr,
    out_ptr,
    x_row,
    programs,
    N: tl.constexpr,
    K: tl.constexpr,
    BIASED: tl.constexpr,
    BM: tl.constexpr,
    BN: tl.constexpr,
    BK: tl.constexpr,
):
    strips: tl.constexpr = (N + BN - 1) // BN
    r = tl.arange(0, BM)
    c = tl.arange(0, BN)
    k = tl.arange(0, BK)
    for unit in range(tl.program_id(0), programs, tl.num_programs(0)):
        group = unit // strips
        first_column = (unit - group * strips) * BN
        wanted = c < N - first_column
        end = tl.load(ends_ptr + group).to(tl.int32)
        start = tl.load(ends_ptr + group - 1, mask=group > 0, other=0).to(tl.int32)
        strip = weight_ptr + (as_int64(group) * N + first_column) * K
        for first_row in range(start, end, BM):
            real = r < end - first_row
            tile = x_ptr + as_int64(first_row) * x_row
            total = tl.zeros((BM, BN), tl.float32)
            for inner in range(0, K, BK):
                inside = k < K - inner
                x = tl.load(
                    tile + inner + r[:, None] * x_row + k[None, :],
                    mask=real[:, None] & inside[None, :],
                    other=0.0,
                )
                w = tl.load(
                    strip + inner + c[:, None] * K + k[None, :],
                    mask=wanted[:, None] & inside[None, :],
                    other=0.0,
                )
                total = tl.dot(x, tl.trans(w), total, input_precision="ieee")
            if BIASED:
                bias = tl.load(
                    bias_ptr + as_int64(group) * N + first_column + c, mask=wanted, other=0.0
                )
                total = total + bias.to(tl.float32)[None, :]
            out = out_ptr + as_int64(first_row) * N + first_column
            tl.store(
                out + r[:, None] * N + c[None, :],
                total.to(out_ptr.dtype.element_ty),
                mask=real[:, None] & wanted[None, :],
            )


def grouped_matmul(
    x: torch.Tensor,
    weight: torch.Tensor,
    groups: torch.Tensor,
    cumulative: bool,
    bias: torch.Tensor | None,
) -> torch.Tensor:
    """See :func:`ascend_fused_moe.ops.grouped_mlp.grouped_matmul`.

    The host does not look at the groups, so that a captured graph can hold the product. Rows
    behind those of all groups are not written.
    """
    rows, count, columns = x.shape[0], *weight.shape[:2]
    inner = x.shape[1]
    x = x if x.stride(1) == 1 else x.contiguous()
    out = torch.empty((rows, columns), dtype=x.dtype, device=x.device)
    ends = groups if cumulative else groups.cumsum(0)
    tile_columns = min(max(next_power_of_two(columns), _SMALLEST), _MOST_COLUMNS)
    programs = count * -(-columns // tile_columns) if rows else 0
    launch(
        _grouped_matmul_kernel,
        programs,
        {
            "x_ptr": x,
            "weight_ptr": weight,
            "ends_ptr": ends.contiguous(),
            "bias_ptr": x if bias is None else bias.contiguous(),
            "out_ptr": out,
            "x_row": x.stride(0),
            "programs": programs,
        },
        {
            "N": columns,
            "K": inner,
            "BIASED": bias is not None,
            "BM": min(max(next_power_of_two(-(-rows // count)), _SMALLEST), _MOST_ROWS),
            "BN": tile_columns,
            "BK": min(max(next_power_of_two(inner), _SMALLEST), _MOST_INNER),
        },
        cube=True,
    )
    return out
