"""The scaled sum in Triton."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from ascend_ops_core.devices import current_facts
from ascend_ops_core.kernels import as_int64
from ascend_ops_core.launch import launch
from ascend_ops_core.tiling import block_of, next_power_of_two


@triton.jit
def _muls_add_kernel(x_ptr, y_ptr, out_ptr, elements, scale, programs, BLOCK: tl.constexpr):
    for unit in range(tl.program_id(0), programs, tl.num_programs(0)):
        first = as_int64(unit) * BLOCK
        offsets = tl.arange(0, BLOCK)
        inside = offsets < elements - first
        x = tl.load(x_ptr + first + offsets, mask=inside).to(tl.float32)
        y = tl.load(y_ptr + first + offsets, mask=inside).to(tl.float32)
        total = (x * scale + y).to(out_ptr.dtype.element_ty)
        tl.store(out_ptr + first + offsets, total, mask=inside)


def muls_add(x: torch.Tensor, y: torch.Tensor, scale: float) -> torch.Tensor:
    """See :func:`ascend_ops_core.ops.muls_add.muls_add`."""
    out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    block = block_of(
        current_facts(),
        streamed=3 * x.element_size(),
        local=8,
        maximum=next_power_of_two(x.numel()),
    )
    programs = -(-x.numel() // block)
    arguments = {
        "x_ptr": x.contiguous(),
        "y_ptr": y.contiguous(),
        "out_ptr": out,
        "elements": x.numel(),
        "scale": scale,
        "programs": programs,
    }
    launch(_muls_add_kernel, programs, arguments, {"BLOCK": block})
    return out
