"""Limits of the slot mapping on NPUs. torch_npu has no such operator."""

from __future__ import annotations

import torch

from ascend_ops_core.devices import DeviceFacts
from ascend_ops_core.support import Support, first_refusal

EXACT_SPAN = 1 << 22
"""The kernel divides offsets within an entry in float32, which is exact below this."""


def supports_compute_slot_mapping_triton(
    facts: DeviceFacts,
    slots: torch.Tensor,
    query_start_loc: torch.Tensor,
    positions: torch.Tensor,
    block_table: torch.Tensor,
    block_size: int,
    ranks: int,
    rank: int,
    interleave: int,
) -> Support:
    """Entries that span fewer positions than float32 divides exactly; rows of the table in one."""
    span = block_size * ranks
    return first_refusal(
        (span <= EXACT_SPAN, f"{span} positions per entry, the kernel takes {EXACT_SPAN}"),
        (
            block_table.stride(1) == 1,
            f"block_table with stride {block_table.stride(1)}, the kernel takes rows of stride 1",
        ),
    )
