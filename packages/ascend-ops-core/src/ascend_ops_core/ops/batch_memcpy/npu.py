"""Limits of the copies on NPUs. torch_npu has no such operator."""

from __future__ import annotations

import torch

from ascend_ops_core.devices import DeviceFacts
from ascend_ops_core.support import SUPPORTED, Support


def supports_batch_memcpy_triton(
    facts: DeviceFacts,
    destination: torch.Tensor,
    source: torch.Tensor,
    destination_offsets: torch.Tensor,
    source_offsets: torch.Tensor,
    sizes: torch.Tensor,
) -> Support:
    """Whatever the definition takes."""
    return SUPPORTED
