"""The count of NaN in Triton."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from ascend_ops_core.devices import current_facts
from ascend_ops_core.kernels import as_int64
from ascend_ops_core.launch import launch
from ascend_ops_core.tiling import block_of, next_power_of_two

# The logits as float32, what each contributes, and the counts of the lanes.
_LIVE_BYTES = 16


@triton.jit
def _num_nans_kernel(
    logits_ptr,
    out_ptr,
    row_stride,
    programs,
    VOCABULARY: tl.constexpr,
    BLOCK: tl.constexpr,
):
    lanes = tl.arange(0, BLOCK)
    for unit in range(tl.program_id(0), programs, tl.num_programs(0)):
        row = logits_ptr + as_int64(unit) * row_stride
        count = tl.zeros((BLOCK,), tl.float32)
        for start in range(0, VOCABULARY, BLOCK):
            inside = lanes < VOCABULARY - start
            x = tl.load(row + start + lanes, mask=inside, other=0.0).to(tl.float32)
            # Only NaN does not equal itself.
            count += tl.where(x == x, 0.0, 1.0)
        tl.store(out_ptr + unit, tl.sum(count, axis=0).to(tl.int32))


def num_nans(logits: torch.Tensor) -> torch.Tensor:
    """See :func:`ascend_ops_core.ops.sampling.num_nans`."""
    rows, vocabulary = logits.shape
    logits = logits if logits.stride(1) == 1 else logits.contiguous()
    out = torch.empty(rows, dtype=torch.int32, device=logits.device)
    block = block_of(
        current_facts(),
        streamed=logits.element_size(),
        local=_LIVE_BYTES,
        maximum=next_power_of_two(vocabulary),
    )
    arguments = {
        "logits_ptr": logits,
        "out_ptr": out,
        "row_stride": logits.stride(0),
        "programs": rows,
    }
    launch(_num_nans_kernel, rows, arguments, {"VOCABULARY": vocabulary, "BLOCK": block})
    return out
