"""Writes into a paged cache in Triton: a row of a token is one transfer to a scalar address."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from ascend_ops_core.devices import current_facts
from ascend_ops_core.kernels import as_int64
from ascend_ops_core.launch import launch
from ascend_ops_core.tiling import block_of, next_power_of_two

_BITS_OF_SIZE = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


@triton.jit
def _scatter_kernel(
    cache_ptr,
    rows_ptr,
    slots_ptr,
    block_size,
    block_stride,
    slot_stride,
    cache_head_stride,
    row_stride,
    row_head_stride,
    width,
    programs,
    HEADS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    lanes = tl.arange(0, BLOCK)
    for unit in range(tl.program_id(0), programs, tl.num_programs(0)):
        slot = tl.load(slots_ptr + unit).to(tl.int32)
        if slot >= 0:
            block = slot // block_size
            to = cache_ptr + as_int64(block) * block_stride
            to += as_int64(slot - block * block_size) * slot_stride
            row = rows_ptr + as_int64(unit) * row_stride
            for head in range(HEADS):
                for start in range(0, width, BLOCK):
                    inside = lanes < width - start
                    data = tl.load(row + head * row_head_stride + start + lanes, mask=inside)
                    tl.store(to + head * cache_head_stride + start + lanes, data, mask=inside)


def scatter_kv(cache: torch.Tensor, rows: torch.Tensor, slots: torch.Tensor, padded: bool) -> None:
    """See :func:`ascend_ops_core.ops.kv_scatter.scatter_kv`."""
    tokens, heads, width = rows.shape
    rows = rows if rows.stride(2) == 1 else rows.contiguous()
    if cache.stride(2) == width and rows.stride(1) == width:
        heads, width = 1, heads * width
    bits = _BITS_OF_SIZE[cache.element_size()]
    block = block_of(
        current_facts(), streamed=2 * cache.element_size(), maximum=next_power_of_two(width)
    )
    arguments = {
        "cache_ptr": cache.view(bits),
        "rows_ptr": rows.view(bits),
        "slots_ptr": slots.contiguous(),
        "block_size": cache.shape[1],
        "block_stride": cache.stride(0),
        "slot_stride": cache.stride(1),
        "cache_head_stride": cache.stride(2),
        "row_stride": rows.stride(0),
        "row_head_stride": rows.stride(1),
        "width": width,
        "programs": tokens,
    }
    launch(
        _scatter_kernel,
        tokens if heads * width else 0,
        arguments,
        {"HEADS": heads, "BLOCK": block},
    )


def scatter_kv_pair(
    key_cache: torch.Tensor,
    value_cache: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    slots: torch.Tensor,
    padded: bool,
) -> None:
    """See :func:`ascend_ops_core.ops.kv_scatter.scatter_kv_pair`."""
    scatter_kv(key_cache, key, slots, padded)
    scatter_kv(value_cache, value, slots, padded)
