"""Limits of the count of NaN on NPUs. torch_npu has no such operator."""

from __future__ import annotations

import torch

from ascend_ops_core.devices import DeviceFacts
from ascend_ops_core.support import Support, first_refusal

EXACT_COUNTS = 1 << 24
"""The kernel counts in float32, which holds every integer up to here."""


def supports_num_nans_triton(facts: DeviceFacts, logits: torch.Tensor) -> Support:
    """Rows that can be counted in float32."""
    return first_refusal(
        (
            logits.shape[1] <= EXACT_COUNTS,
            f"rows of {logits.shape[1]}, the kernel counts to {EXACT_COUNTS}",
        )
    )
