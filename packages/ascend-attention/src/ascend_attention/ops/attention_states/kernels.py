"""The merge of attention's parts in Triton: a tile of heads, part after part, each read once."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from ascend_ops_core.devices import current_facts
from ascend_ops_core.kernels import as_int64
from ascend_ops_core.launch import launch
from ascend_ops_core.tiling import next_power_of_two, tile_rows

# Below every logarithm, above -inf, so that differences are numbers.
_LOWEST = tl.constexpr(-3.0e38)


@triton.jit
def _merge_kernel(
    outs_ptr,
    lses_ptr,
    out_ptr,
    lse_ptr,
    part_rows,
    rows,
    programs,
    PARTS: tl.constexpr,
    WIDTH: tl.constexpr,
    PADDED: tl.constexpr,
    TAKEN: tl.constexpr,
):
    h = tl.arange(0, TAKEN)
    d = tl.arange(0, PADDED)
    for unit in range(tl.program_id(0), programs, tl.num_programs(0)):
        first = as_int64(unit) * TAKEN
        real = h < rows - first
        mask = real[:, None] & (d < WIDTH)[None, :]
        top = tl.full((TAKEN,), _LOWEST, tl.float32)
        total = tl.zeros((TAKEN,), tl.float32)
        summed = tl.zeros((TAKEN, PADDED), tl.float32)
        for part in range(PARTS):
            here = as_int64(part) * part_rows + first
            lse = tl.load(lses_ptr + here + h, mask=real, other=0.0)
            higher = tl.where(lse > top, lse, top)
            factor = tl.exp(top - higher)
            weight = tl.exp(lse - higher)
            total = total * factor + weight
            at = outs_ptr + here * WIDTH + h[:, None] * WIDTH + d[None, :]
            values = tl.load(at, mask=mask, other=0.0).to(tl.float32)
            # What a part without a token holds is garbage.
            wide = tl.broadcast_to(weight[:, None], (TAKEN, PADDED))
            values = tl.where(wide > 0.0, values * wide, 0.0)
            summed = summed * factor[:, None] + values
            top = higher
        some = total > 0.0
        out = summed * (1.0 / tl.where(some, total, 1.0))[:, None]
        to = out_ptr + first * WIDTH + h[:, None] * WIDTH + d[None, :]
        tl.store(to, out.to(out_ptr.dtype.element_ty), mask=mask)
        merged = tl.where(some, top + tl.log(tl.where(some, total, 1.0)), float("-inf"))
        tl.store(lse_ptr + first + h, merged, mask=real)


def merge_attention_states(
    outs: torch.Tensor, lses: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """See :func:`ascend_attention.ops.attention_states.merge_attention_states`."""
    out = torch.empty(outs.shape[1:], dtype=outs.dtype, device=outs.device)
    return out, merge_into(outs, lses, out)


def merge_into(outs: torch.Tensor, lses: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
    """Write the merge of ``outs [S, ..., D]`` to ``out [..., D]`` of any float dtype.

    Returns:
        The logarithms, ``[...]`` float32.
    """
    parts, width = outs.shape[0], outs.shape[-1]
    lse = torch.empty(lses.shape[1:], dtype=torch.float32, device=lses.device)
    rows = lse.numel()
    padded = next_power_of_two(width)
    taken = tile_rows(
        current_facts(),
        padded,
        streamed=outs.element_size() + out.element_size(),
        local=16,
        maximum=min(64, next_power_of_two(rows)),
    )
    programs = -(-rows // taken) if width else 0
    arguments = {
        "outs_ptr": outs,
        "lses_ptr": lses,
        "out_ptr": out,
        "lse_ptr": lse,
        "part_rows": rows,
        "rows": rows,
        "programs": programs,
    }
    constants = {"PARTS": parts, "WIDTH": width, "PADDED": padded, "TAKEN": taken}
    launch(_merge_kernel, programs, arguments, constants)
    return lse
