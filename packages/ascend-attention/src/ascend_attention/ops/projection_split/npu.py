"""Limits of the split's kernel; torch_npu has no operator for it."""

from __future__ import annotations

import torch
from ascend_ops_core.devices import DeviceFacts
from ascend_ops_core.support import Support, first_refusal

_MOST_VALUES = 4096


def supports_split_qkvz_ba_triton(
    facts: DeviceFacts,
    qkvz: torch.Tensor,
    ba: torch.Tensor,
    key_heads: int,
    value_heads: int,
    key_width: int,
    value_width: int,
) -> Support:
    """Values of a key head as wide as a tile takes; rows without gaps inside."""
    values = value_heads // key_heads * value_width
    return first_refusal(
        (
            max(values, key_width) <= _MOST_VALUES,
            f"a key head of {max(values, key_width)} values, the kernel takes {_MOST_VALUES}",
        ),
        (
            qkvz.stride(1) == 1 and ba.stride(1) == 1,
            f"strides {qkvz.stride(1)} and {ba.stride(1)} inside, the kernel reads stride 1",
        ),
    )
