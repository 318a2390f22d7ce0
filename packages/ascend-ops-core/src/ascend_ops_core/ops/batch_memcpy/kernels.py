"""The copies in Triton."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from ascend_ops_core.devices import current_facts
from ascend_ops_core.launch import launch
from ascend_ops_core.tiling import block_of

_BLOCK = 8192
"""Bytes moved at once, at most: enough for a transfer's speed, and little is read in vain."""


@triton.jit
def _batch_memcpy_kernel(
    destination_ptr,
    source_ptr,
    destination_offsets_ptr,
    source_offsets_ptr,
    sizes_ptr,
    parts,
    programs,
    BLOCK: tl.constexpr,
):
    lanes = tl.arange(0, BLOCK)
    for unit in range(tl.program_id(0), programs, tl.num_programs(0)):
        copy = unit // parts
        to = destination_ptr + tl.load(destination_offsets_ptr + copy)
        start = source_ptr + tl.load(source_offsets_ptr + copy)
        size = tl.load(sizes_ptr + copy)
        done = (unit - copy * parts) * BLOCK
        while done < size:
            inside = lanes < size - done
            data = tl.load(start + done + lanes, mask=inside)
            tl.store(to + done + lanes, data, mask=inside)
            done += parts * BLOCK


def batch_memcpy(
    destination: torch.Tensor,
    source: torch.Tensor,
    destination_offsets: torch.Tensor,
    source_offsets: torch.Tensor,
    sizes: torch.Tensor,
) -> None:
    """See :func:`ascend_ops_core.ops.batch_memcpy.batch_memcpy`."""
    copies = sizes.shape[0]
    facts = current_facts()
    # A few large ranges keep all cores busy as well as many small ones.
    parts = max(1, facts.vector_cores // max(1, copies))
    arguments = {
        "destination_ptr": destination,
        "source_ptr": source,
        "destination_offsets_ptr": destination_offsets.contiguous(),
        "source_offsets_ptr": source_offsets.contiguous(),
        "sizes_ptr": sizes.contiguous(),
        "parts": parts,
        "programs": copies * parts,
    }
    block = block_of(facts, streamed=2, maximum=_BLOCK)
    launch(_batch_memcpy_kernel, copies * parts, arguments, {"BLOCK": block})
