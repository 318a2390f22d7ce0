"""Limits of the Hadamard rotation's kernel; torch_npu has no operator for it."""

from __future__ import annotations

import torch

from ascend_ops_core.devices import DeviceFacts
from ascend_ops_core.ops.norm.npu import takes_float
from ascend_ops_core.support import Support


def supports_hadamard_triton(
    facts: DeviceFacts, x: torch.Tensor, block: int, scale: float
) -> Support:
    """Any float dtype."""
    return takes_float(x)
