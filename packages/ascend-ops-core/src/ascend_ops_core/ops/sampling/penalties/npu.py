"""Limits of the penalties on NPUs. torch_npu has no such operator."""

from __future__ import annotations

import torch

from ascend_ops_core.devices import DeviceFacts
from ascend_ops_core.support import Support, first_refusal


def supports_apply_penalties_triton(
    facts: DeviceFacts, logits: torch.Tensor, *rest: torch.Tensor
) -> Support:
    """Rows without gaps, because they are written where they lie."""
    return first_refusal(
        (logits.stride(1) == 1, f"logits with stride {logits.stride(1)}, a row has stride 1")
    )
