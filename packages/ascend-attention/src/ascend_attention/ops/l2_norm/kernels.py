"""The L2 norm in Triton: tiles of whole rows."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from ascend_ops_core.devices import current_facts
from ascend_ops_core.kernels import as_int64
from ascend_ops_core.launch import launch
from ascend_ops_core.tiling import next_power_of_two, tile_rows

# Bytes alive per element besides what is loaded and stored: the row in float32, its square or
# product. The compile check measures that tiles which fill this share by the estimate fit.
_LIVE_BYTES = 10
_SHARE = 0.9


@triton.jit
def _l2_norm_kernel(
    x_ptr,
    out_ptr,
    rows,
    row_stride,
    eps,
    inverse,
    programs,
    WIDTH: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
    SCALED: tl.constexpr,
    WHOLE: tl.constexpr,
):
    """Rows divided by their length; ``inverse`` is that of the squared scale."""
    columns = tl.arange(0, BLOCK)
    inside = columns < WIDTH
    r = tl.arange(0, ROWS)
    for unit in range(tl.program_id(0), programs, tl.num_programs(0)):
        first = as_int64(unit) * ROWS
        if WHOLE:
            # The last tile goes over rows of the one before, so that none needs a mask.
            first = tl.where(first < rows - ROWS, first, rows - ROWS)
        tile = x_ptr + first * row_stride + r[:, None] * row_stride + columns[None, :]
        here = out_ptr + first * WIDTH + r[:, None] * WIDTH + columns[None, :]
        mask = (r < rows - first)[:, None] & inside[None, :]
        if WHOLE:
            x = tl.load(tile).to(tl.float32)
        else:
            x = tl.load(tile, mask=mask, other=0.0).to(tl.float32)
        squares = tl.sum(x * x, axis=1) + eps
        if SCALED:
            squares = squares * inverse
        y = (x / tl.sqrt(squares)[:, None]).to(out_ptr.dtype.element_ty)
        if WHOLE:
            tl.store(here, y)
        else:
            tl.store(here, y, mask=mask)


def l2_norm(x: torch.Tensor, eps: float, scale: float, dtype: torch.dtype) -> torch.Tensor:
    """See :func:`ascend_attention.ops.l2_norm.l2_norm`."""
    width = x.shape[-1]
    out = torch.empty(x.shape, dtype=dtype, device=x.device)
    if not x.numel():
        return out
    rows = x.reshape(-1, width)
    rows = rows if width == 1 or rows.stride(1) == 1 else rows.contiguous()
    padded = next_power_of_two(width)
    taken = tile_rows(
        current_facts(),
        padded,
        streamed=x.element_size() + out.element_size(),
        local=_LIVE_BYTES,
        per_row=8,
        maximum=next_power_of_two(rows.shape[0]),
        share=_SHARE,
    )
    programs = -(-rows.shape[0] // taken)
    arguments = {
        "x_ptr": rows,
        "out_ptr": out,
        "rows": rows.shape[0],
        "row_stride": rows.stride(0),
        "eps": eps,
        "inverse": 1.0 / (scale * scale),
        "programs": programs,
    }
    constants = {
        "WIDTH": width,
        "ROWS": taken,
        "BLOCK": padded,
        "SCALED": scale != 1.0,
        "WHOLE": width == padded and rows.shape[0] >= taken,
    }
    launch(_l2_norm_kernel, programs, arguments, constants)
    return out
