"""The norms in Triton."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from ascend_ops_core.devices import current_facts
from ascend_ops_core.kernels import as_int64
from ascend_ops_core.launch import launch
from ascend_ops_core.tiling import SHARE, block_of, next_power_of_two, tile_bytes, tile_rows

# float32 values alive per element: the loaded row, its square or product, and the result.
_LIVE_BYTES = 16


@triton.jit
def _rms_norm_kernel(
    x_ptr,
    weight_ptr,
    out_ptr,
    rows,
    row_stride,
    eps,
    programs,
    WIDTH: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
    WEIGHTED: tl.constexpr,
):
    columns = tl.arange(0, BLOCK)
    inside = columns < WIDTH
    weight = tl.full((BLOCK,), 1.0, tl.float32)
    if WEIGHTED:
        weight = tl.load(weight_ptr + columns, mask=inside, other=0.0).to(tl.float32)
    for unit in range(tl.program_id(0), programs, tl.num_programs(0)):
        first = as_int64(unit) * ROWS
        r = tl.arange(0, ROWS)
        mask = (r < rows - first)[:, None] & inside[None, :]
        tile = x_ptr + first * row_stride + r[:, None] * row_stride + columns[None, :]
        x = tl.load(tile, mask=mask, other=0.0).to(tl.float32)
        scale = 1.0 / tl.sqrt(tl.sum(x * x, axis=1) / WIDTH + eps)
        y = x * scale[:, None] * weight[None, :]
        out = out_ptr + first * WIDTH + r[:, None] * WIDTH + columns[None, :]
        tl.store(out, y.to(out_ptr.dtype.element_ty), mask=mask)


@triton.jit
def _rms_norm_wide_kernel(
    x_ptr,
    weight_ptr,
    out_ptr,
    row_stride,
    eps,
    programs,
    WIDTH: tl.constexpr,
    BLOCK: tl.constexpr,
    WEIGHTED: tl.constexpr,
):
    for unit in range(tl.program_id(0), programs, tl.num_programs(0)):
        row = x_ptr + as_int64(unit) * row_stride
        out = out_ptr + as_int64(unit) * WIDTH
        squares = tl.zeros((BLOCK,), tl.float32)
        for start in range(0, WIDTH, BLOCK):
            columns = start + tl.arange(0, BLOCK)
            x = tl.load(row + columns, mask=columns < WIDTH, other=0.0).to(tl.float32)
            squares += x * x
        scale = 1.0 / tl.sqrt(tl.sum(squares, axis=0) / WIDTH + eps)
        for start in range(0, WIDTH, BLOCK):
            columns = start + tl.arange(0, BLOCK)
            inside = columns < WIDTH
            y = tl.load(row + columns, mask=inside, other=0.0).to(tl.float32) * scale
            if WEIGHTED:
                y = y * tl.load(weight_ptr + columns, mask=inside, other=0.0).to(tl.float32)
            tl.store(out + columns, y.to(out_ptr.dtype.element_ty), mask=inside)


def rms_norm(x: torch.Tensor, weight: torch.Tensor | None, eps: float) -> torch.Tensor:
    """See :func:`ascend_ops_core.ops.norm.rms_norm`."""
    width = x.shape[-1]
    rows = x.reshape(-1, width)
    if rows.stride(-1) != 1:
        rows = rows.contiguous()
    out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    facts, padded = current_facts(), next_power_of_two(width)
    arguments = {
        "x_ptr": rows,
        "weight_ptr": rows if weight is None else weight,
        "out_ptr": out,
        "row_stride": rows.stride(0),
        "eps": eps,
    }
    constants = {"WIDTH": width, "WEIGHTED": weight is not None}
    streamed = 2 * x.element_size()
    if tile_bytes(padded, streamed=streamed, local=_LIVE_BYTES) > facts.ub_bytes * SHARE:
        block = block_of(facts, streamed=streamed, local=_LIVE_BYTES, maximum=padded)
        arguments["programs"] = rows.shape[0]
        launch(_rms_norm_wide_kernel, rows.shape[0], arguments, constants | {"BLOCK": block})
        return out
    tile = tile_rows(
        facts,
        padded,
        streamed=streamed,
        local=_LIVE_BYTES,
        maximum=next_power_of_two(rows.shape[0]),
    )
    programs = -(-rows.shape[0] // tile)
    arguments |= {"rows": rows.shape[0], "programs": programs}
    launch(_rms_norm_kernel, programs, arguments, constants | {"BLOCK": padded, "ROWS": tile})
    return out
