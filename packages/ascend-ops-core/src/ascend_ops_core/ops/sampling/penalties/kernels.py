"""The penalties in Triton."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from ascend_ops_core.devices import current_facts
from ascend_ops_core.kernels import as_int64
from ascend_ops_core.launch import launch
from ascend_ops_core.tiling import block_of, next_power_of_two

# Mask and count as float32, the logit, and the three intermediate results.
_LIVE_BYTES = 32


@triton.jit
def _penalties_kernel(
    logits_ptr,
    prompt_ptr,
    counts_ptr,
    repetition_ptr,
    frequency_ptr,
    presence_ptr,
    vocabulary,
    logits_stride,
    prompt_stride,
    counts_stride,
    blocks,
    programs,
    BLOCK: tl.constexpr,
):
    lanes = tl.arange(0, BLOCK)
    for unit in range(tl.program_id(0), programs, tl.num_programs(0)):
        row = unit // blocks
        start = (unit - row * blocks) * BLOCK
        inside = lanes < vocabulary - start
        repetition = tl.load(repetition_ptr + row)
        frequency = tl.load(frequency_ptr + row)
        presence = tl.load(presence_ptr + row)
        here = logits_ptr + as_int64(row) * logits_stride + start + lanes
        x = tl.load(here, mask=inside, other=0.0).to(tl.float32)
        prompt = tl.load(
            prompt_ptr + as_int64(row) * prompt_stride + start + lanes, mask=inside, other=0
        ).to(tl.float32)
        counts = tl.load(
            counts_ptr + as_int64(row) * counts_stride + start + lanes, mask=inside, other=0
        ).to(tl.float32)
        factor = tl.where(prompt + counts > 0, repetition, 1.0)
        x = tl.where(x > 0, x / factor, x * factor)
        x = x - frequency * counts - tl.where(counts > 0, presence, 0.0)
        tl.store(here, x.to(logits_ptr.dtype.element_ty), mask=inside)


def apply_penalties(
    logits: torch.Tensor,
    prompt_mask: torch.Tensor,
    output_counts: torch.Tensor,
    repetition: torch.Tensor,
    frequency: torch.Tensor,
    presence: torch.Tensor,
) -> None:
    """See :func:`ascend_ops_core.ops.sampling.apply_penalties`."""
    rows, vocabulary = logits.shape
    prompt_mask = prompt_mask if prompt_mask.stride(1) == 1 else prompt_mask.contiguous()
    output_counts = output_counts if output_counts.stride(1) == 1 else output_counts.contiguous()
    block = block_of(
        current_facts(),
        streamed=2 * logits.element_size() + 5,
        local=_LIVE_BYTES,
        maximum=next_power_of_two(vocabulary),
    )
    blocks = -(-vocabulary // block)
    arguments = {
        "logits_ptr": logits,
        "prompt_ptr": prompt_mask.view(torch.int8),
        "counts_ptr": output_counts,
        "repetition_ptr": repetition.contiguous(),
        "frequency_ptr": frequency.contiguous(),
        "presence_ptr": presence.contiguous(),
        "vocabulary": vocabulary,
        "logits_stride": logits.stride(0),
        "prompt_stride": prompt_mask.stride(0),
        "counts_stride": output_counts.stride(0),
        "blocks": blocks,
        "programs": rows * blocks,
    }
    launch(_penalties_kernel, rows * blocks, arguments, {"BLOCK": block})
