"""Limits of the L2 norm's kernel; torch_npu has no operator for it."""

from __future__ import annotations

import torch
from ascend_ops_core.checks import FLOATS
from ascend_ops_core.devices import DeviceFacts
from ascend_ops_core.support import Support, first_refusal

_MOST_WIDTH = 2048


def supports_l2_norm_triton(
    facts: DeviceFacts, x: torch.Tensor, eps: float, scale: float, dtype: torch.dtype
) -> Support:
    """Rows as wide as heads are."""
    return first_refusal(
        (x.dtype in FLOATS, f"rows of {x.dtype}, the kernel takes float"),
        (
            x.shape[-1] <= _MOST_WIDTH,
            f"rows of width {x.shape[-1]}, the kernel takes {_MOST_WIDTH}",
        ),
    )
