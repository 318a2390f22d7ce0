"""The grouped convolution in Triton: a row is one unit of work, its channels come in whole groups.

A row's coefficients are few, one for each group and tap, so a tile of groups takes them as a column
that is spread over the channels of a group.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from ascend_ops_core.devices import current_facts
from ascend_ops_core.kernels import as_int64
from ascend_ops_core.launch import launch
from ascend_ops_core.tiling import next_power_of_two, tile_rows


@triton.jit
def _grouped_convolution_kernel(
    x_ptr,
    base_ptr,
    delta_ptr,
    out_ptr,
    delta_row,
    programs,
    WIDTH: tl.constexpr,
    GROUPS: tl.constexpr,
    TAPS: tl.constexpr,
    BLOCK: tl.constexpr,
    TILE: tl.constexpr,
    CHANNELS: tl.constexpr,
):
    SIZE: tl.constexpr = WIDTH // GROUPS
    group = tl.arange(0, TILE)
    channel = tl.arange(0, CHANNELS)
    for unit in range(tl.program_id(0), programs, tl.num_programs(0)):
        place = unit - unit // BLOCK * BLOCK
        row = as_int64(unit)
        for first in range(0, GROUPS, TILE):
            real = group < GROUPS - first
            inside = real[:, None] & (channel < SIZE)[None, :]
            offset = (first + group)[:, None] * SIZE + channel[None, :]
            total = tl.zeros((TILE, CHANNELS), tl.float32)
            for tap in tl.static_range(TAPS):
                if place >= tap:
                    x = tl.load(x_ptr + (row - tap) * WIDTH + offset, mask=inside, other=0.0)
                    weight = tl.load(base_ptr + tap * WIDTH + offset, mask=inside, other=0.0)
                    delta = tl.load(
                        delta_ptr + row * delta_row + tap * GROUPS + first + group,
                        mask=real,
                        other=0.0,
                    )
                    weight = weight.to(tl.float32) + delta.to(tl.float32)[:, None]
                    total += weight * x.to(tl.float32)
            tl.store(
                out_ptr + row * WIDTH + offset, total.to(out_ptr.dtype.element_ty), mask=inside
            )


def grouped_convolution(
    x: torch.Tensor, base: torch.Tensor, coefficients: torch.Tensor, side: int, block: int
) -> torch.Tensor:
    """See :func:`ascend_specdec.ops.grouped_convolution.grouped_convolution`."""
    rows, width = x.shape
    _, sides, taps, groups = coefficients.shape
    out = torch.empty((rows, width), dtype=x.dtype, device=x.device)
    delta = coefficients.contiguous()
    channels = next_power_of_two(width // groups)
    arguments = {
        "x_ptr": x.contiguous(),
        "base_ptr": base.contiguous()[side],
        "delta_ptr": delta.flatten()[side * taps * groups :],
        "out_ptr": out,
        "delta_row": sides * taps * groups,
        "programs": rows,
    }
    constants = {
        "WIDTH": width,
        "GROUPS": groups,
        "TAPS": taps,
        "BLOCK": block,
        "TILE": tile_rows(
            current_facts(),
            channels,
            # The row and its weights; their float32 copies and the sum.
            streamed=3 * x.element_size(),
            local=20,
            maximum=next_power_of_two(groups),
        ),
        "CHANNELS": channels,
    }
    launch(_grouped_convolution_kernel, rows, arguments, constants)
    return out
