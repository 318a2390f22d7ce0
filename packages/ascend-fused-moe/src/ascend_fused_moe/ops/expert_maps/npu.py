"""Limits of the mapping to physical experts on NPUs. torch_npu has no such operator."""

from __future__ import annotations

import torch
from ascend_ops_core.devices import DeviceFacts
from ascend_ops_core.support import Support, first_refusal

_MAX_OFFSET = 2**31


def supports_map_to_physical_and_record_triton(
    facts: DeviceFacts,
    ids: torch.Tensor,
    table: torch.Tensor,
    load: torch.Tensor | None,
    num_unpadded_tokens: torch.Tensor | None,
    offset: int,
) -> Support:
    """Tables and ids of fewer than 2^31 elements; counters that lie side by side."""
    dense = load is None or load.is_contiguous()
    return first_refusal(
        (
            table.numel() < _MAX_OFFSET,
            f"a table of {table.numel()} elements, the kernel counts in 31 bits",
        ),
        (
            ids.shape[0] * ids.stride(0) < _MAX_OFFSET,
            f"ids over {ids.shape[0] * ids.stride(0)} elements, the kernel counts in 31 bits",
        ),
        (dense, "counters with strides, the kernel takes dense ones"),
    )
