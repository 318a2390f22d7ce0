"""Limits of top-k and top-p on NPUs.

torch_npu's ``npu_top_k_top_p`` is not used: it takes k from 1 to min(1024, V) only and has no
value for "no top-k", so whether it may run depends on the values of k, which lie on the device.
"""

from __future__ import annotations

import torch

from ascend_ops_core.devices import DeviceFacts
from ascend_ops_core.support import Support, first_refusal

EXACT_COUNTS = 1 << 24
"""The kernel counts in float32, which holds every integer up to here."""


def supports_top_k_top_p_triton(
    facts: DeviceFacts, logits: torch.Tensor, k: torch.Tensor | None, p: torch.Tensor | None
) -> Support:
    """Vocabularies that can be counted in float32."""
    return first_refusal(
        (
            logits.shape[1] <= EXACT_COUNTS,
            f"vocabulary of {logits.shape[1]}, the kernel counts to {EXACT_COUNTS}",
        )
    )
