"""Limits of block inputs on NPUs. torch_npu has no such operator."""

from __future__ import annotations

import torch
from ascend_ops_core.devices import DeviceFacts
from ascend_ops_core.support import Support, first_refusal


def supports_expand_blocks_triton(
    facts: DeviceFacts,
    tokens: torch.Tensor,
    positions: torch.Tensor,
    slots: torch.Tensor,
    context_slots: torch.Tensor,
    next_tokens: torch.Tensor,
    query_start: torch.Tensor,
    seq_lens: torch.Tensor,
    rejected: torch.Tensor | None,
    block_table: torch.Tensor,
    mask_token: int,
    block_size: int,
    limit: int,
) -> Support:
    """Rows that are written without gaps, and rows of the table that are read without them."""
    written = (tokens, positions, slots, context_slots)
    return first_refusal(
        (
            all(rows.is_contiguous() for rows in written),
            "rows with gaps, the kernel writes whole buffers",
        ),
        (
            block_table.stride(1) == 1,
            f"block_table with stride {block_table.stride(1)}, the kernel takes rows of stride 1",
        ),
    )
