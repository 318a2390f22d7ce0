"""Limits of the merge on NPUs.

torch_npu's ``npu_attention_update`` takes two parts of one width in a list and returns no
logarithm, so there is no adaptor. Not run on hardware.
"""

from __future__ import annotations

import torch
from ascend_ops_core.devices import DeviceFacts
from ascend_ops_core.support import Support, first_refusal


def supports_merge_attention_states_triton(
    facts: DeviceFacts, outs: torch.Tensor, lses: torch.Tensor
) -> Support:
    """Contiguous parts."""
    return first_refusal(
        (outs.is_contiguous(), "parts with gaps, the kernel reads them side by side"),
        (lses.is_contiguous(), "logarithms with gaps, the kernel reads them side by side"),
    )
