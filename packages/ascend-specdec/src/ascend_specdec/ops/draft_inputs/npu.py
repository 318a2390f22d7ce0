"""Limits of what prepares a draft's inputs on NPUs. torch_npu has no such operators."""

from __future__ import annotations

import torch
from ascend_ops_core.devices import DeviceFacts
from ascend_ops_core.support import SUPPORTED, Support, first_refusal

EXACT = 1 << 24
"""Kernels compare in float32, which holds every integer up to here."""


def supports_prepare_inputs_padded_triton(
    facts: DeviceFacts,
    out_indices: torch.Tensor,
    out_rejected: torch.Tensor,
    cumulative: torch.Tensor,
    valid_counts: torch.Tensor,
    query_start_loc: torch.Tensor,
) -> Support:
    """Everything that the operator takes."""
    return SUPPORTED


def supports_next_tokens_padded_triton(
    facts: DeviceFacts,
    out_next: torch.Tensor,
    out_counts: torch.Tensor,
    sampled: torch.Tensor,
    discarded: torch.Tensor,
    backup: torch.Tensor,
    vocabulary: int,
) -> Support:
    """Vocabularies whose ids float32 tells apart."""
    return first_refusal(
        (vocabulary < EXACT, f"vocabulary of {vocabulary}, the kernel takes fewer than {EXACT}")
    )


def supports_next_positions_triton(
    facts: DeviceFacts,
    out_positions: torch.Tensor,
    out_slots: torch.Tensor,
    seq_lens: torch.Tensor,
    positions: torch.Tensor,
    block_table: torch.Tensor,
    block_size: int,
    limit: int,
) -> Support:
    """Rows of the table in one."""
    return first_refusal(
        (
            block_table.stride(1) == 1,
            f"block_table with stride {block_table.stride(1)}, the kernel takes rows of stride 1",
        )
    )
