"""Limits of the token counts on NPUs. torch_npu has no such operator."""

from __future__ import annotations

import torch

from ascend_ops_core.devices import DeviceFacts
from ascend_ops_core.support import SUPPORTED, Support


def supports_token_bin_counts_and_mask_triton(
    facts: DeviceFacts, tokens: torch.Tensor, vocabulary: int
) -> Support:
    """Whatever the definition takes."""
    return SUPPORTED
