"""Packed rows in Triton: a row is a tile with a line for every group."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from ascend_ops_core.kernels import as_int64
from ascend_ops_core.launch import launch
from ascend_ops_core.ops.quantization.kernels import (
    e4m3_bits,
    e8m0_code,
    magnitude,
    times_inverse_power,
)
from ascend_ops_core.tiling import next_power_of_two

from ascend_attention.ops.packed_rows.layout import GROUP, groups_of

# With a single line the compiler for A5 makes invalid code of the masked tile.
_FEWEST_LINES = 2


@triton.jit
def _quantize_kv_kernel(
    rows_ptr,
    block_ptr,
    offset_ptr,
    packed_ptr,
    rotated_ptr,
    row_stride,
    block_bytes,
    row_bytes,
    programs,
    QUANTISED: tl.constexpr,
    ROTARY: tl.constexpr,
    GROUPS: tl.constexpr,
    LINES: tl.constexpr,
    LANES: tl.constexpr,
    GROUP: tl.constexpr,
):
    g = tl.arange(0, LINES)
    v = tl.arange(0, GROUP)
    r = tl.arange(0, LANES)
    at = g[:, None] * GROUP + v[None, :]
    inside = at < QUANTISED
    for unit in range(tl.program_id(0), programs, tl.num_programs(0)):
        block = tl.load(block_ptr + unit).to(tl.int32)
        offset = tl.load(offset_ptr + unit).to(tl.int32)
        if (block >= 0) & (offset >= 0):
            row = rows_ptr + as_int64(unit) * row_stride
            x = tl.load(row + at, mask=inside, other=0.0).to(tl.float32)
            largest = tl.max(magnitude(x), axis=1)
            bits = largest.to(tl.int32, bitcast=True)
            # 448 is 1.75 * 2^8; what passes 1.75 needs the next power of two.
            above = tl.where((bits & 0x7FFFFF) > 0x600000, 1, 0)
            code = e8m0_code((bits >> 23) - 8 + above, largest)
            out = packed_ptr + as_int64(block) * block_bytes + as_int64(offset) * row_bytes
            tl.store(out + at, e4m3_bits(times_inverse_power(x, code)), mask=inside)
            scales = out + QUANTISED + 2 * ROTARY
            tl.store(scales + g, code.to(tl.uint8), mask=g < GROUPS)
            if ROTARY > 0:
                rotated = tl.load(row + QUANTISED + r, mask=r < ROTARY, other=0.0)
                to = rotated_ptr + as_int64(block) * (block_bytes // 2)
                to += as_int64(offset) * (row_bytes // 2)
                tl.store(to + r, rotated.to(tl.bfloat16), mask=r < ROTARY)


def rotated_values(packed: torch.Tensor, width: int, rotary: int) -> torch.Tensor:
    """``[B, P, rotary]`` bfloat16 view of the values that are not quantised."""
    return packed[..., width - rotary : width + rotary].view(torch.bfloat16)


def constants_of(width: int, rotary: int, lanes: int) -> dict[str, int]:
    """Constants of kernels that read or write packed rows.

    Args:
        width: values of a row.
        rotary: rotated values at its end.
        lanes: values behind the quantised ones that are moved at once; 0 or more.
    """
    groups = groups_of(width, rotary)
    return {
        "QUANTISED": width - rotary,
        "ROTARY": rotary,
        "GROUPS": groups,
        "LINES": max(next_power_of_two(groups), _FEWEST_LINES),
        "LANES": next_power_of_two(lanes),
        "GROUP": GROUP,
    }


def quantize_kv_rows(
    packed: torch.Tensor,
    rows: torch.Tensor,
    block: torch.Tensor,
    offset: torch.Tensor,
    rotary: int,
) -> None:
    """See :func:`ascend_attention.ops.packed_rows.quantize_kv_rows`."""
    count, width = rows.shape
    rows = rows if rows.stride(1) == 1 else rows.contiguous()
    arguments = {
        "rows_ptr": rows,
        "block_ptr": block.contiguous(),
        "offset_ptr": offset.contiguous(),
        "packed_ptr": packed,
        "rotated_ptr": rotated_values(packed, width, rotary),
        "row_stride": rows.stride(0),
        "block_bytes": packed.stride(0),
        "row_bytes": packed.stride(1),
        "programs": count,
    }
    launch(_quantize_kv_kernel, count, arguments, constants_of(width, rotary, lanes=rotary))
