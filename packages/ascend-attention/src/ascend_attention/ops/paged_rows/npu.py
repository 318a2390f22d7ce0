"""Limits of the row kernels on NPUs.

torch_npu's writes into paged caches take one flat slot per row (``npu_scatter_nd_update_``) or
caches without gaps (``npu_scatter_pa_kv_cache``), while these caches are strided views of a slab
that several caches share; so there is no adaptor. Not run on hardware.
"""

from __future__ import annotations

import torch
from ascend_ops_core.checks import FLOATS, INDICES
from ascend_ops_core.devices import DeviceFacts
from ascend_ops_core.support import Support, first_refusal

_LARGEST_ROW = 1 << 23
_MOVED = (
    *FLOATS,
    torch.float8_e4m3fn,
    torch.float8_e5m2,
    torch.int8,
    torch.uint8,
    torch.int16,
    torch.int32,
    torch.int64,
)


def supports_locate_rows_triton(
    facts: DeviceFacts,
    block_table: torch.Tensor,
    request: torch.Tensor,
    row: torch.Tensor,
    rows_per_block: int,
) -> Support:
    """One request for each row, or for each line of a table of rows."""
    lines = (row.shape[0],) if row.dim() == 1 else (*row.shape[:1], 1)
    reach = block_table.shape[1] * rows_per_block
    return first_refusal(
        (row.dim() in (1, 2), f"rows with {row.dim()} axes, the kernel takes 1 or 2"),
        (
            tuple(request.shape) == lines,
            f"requests of shape {list(request.shape)} for rows of shape {list(row.shape)}, the "
            "kernel takes one for each line of rows",
        ),
        (
            request.dtype in INDICES and row.dtype in INDICES,
            f"requests of {request.dtype} and rows of {row.dtype}, the kernel takes int32, int64",
        ),
        (
            block_table.stride(1) == 1,
            f"block table with stride {block_table.stride(1)} along blocks, the kernel reads "
            "stride 1",
        ),
        (
            reach <= _LARGEST_ROW,
            f"{reach} rows of a request, the kernel divides up to {_LARGEST_ROW} in float32",
        ),
    )


def supports_gather_rows_triton(
    facts: DeviceFacts, cache: torch.Tensor, block: torch.Tensor, offset: torch.Tensor
) -> Support:
    """Any dtype that Triton can move; rows without gaps inside."""
    return first_refusal(
        (cache.dtype in _MOVED, f"cache of {cache.dtype}, the kernel does not move it"),
        _without_gaps(cache),
    )


def supports_write_rows_triton(
    facts: DeviceFacts,
    cache: torch.Tensor,
    rows: torch.Tensor,
    block: torch.Tensor,
    offset: torch.Tensor,
) -> Support:
    """float32, bfloat16 and float16 on both sides; rows without gaps inside."""
    return first_refusal(
        (
            cache.dtype in FLOATS and rows.dtype in FLOATS,
            f"rows of {rows.dtype} into a cache of {cache.dtype}, the kernel converts between "
            "float32, bfloat16, float16",
        ),
        _without_gaps(cache),
    )


def _without_gaps(cache: torch.Tensor) -> tuple[bool, str]:
    return (
        cache.stride(2) == 1,
        f"cache with stride {cache.stride(2)} inside a row, the kernel moves stride 1",
    )
