"""Limits of the scaled sum's kernel; torch_npu has no operator that rounds once."""

from __future__ import annotations

import torch

from ascend_ops_core.devices import DeviceFacts
from ascend_ops_core.ops.norm.npu import takes_float
from ascend_ops_core.support import Support


def supports_muls_add_triton(
    facts: DeviceFacts, x: torch.Tensor, y: torch.Tensor, scale: float
) -> Support:
    """Any float dtype."""
    return takes_float(x)
