"""Limits of the grouped convolution on NPUs. torch_npu has no such operator."""

from __future__ import annotations

import torch
from ascend_ops_core.devices import DeviceFacts
from ascend_ops_core.support import Support, first_refusal

MOST_CHANNELS = 4096
"""Channels of a group that a tile holds with its weights, on the smallest unified buffer."""


def supports_grouped_convolution_triton(
    facts: DeviceFacts,
    x: torch.Tensor,
    base: torch.Tensor,
    coefficients: torch.Tensor,
    side: int,
    block: int,
) -> Support:
    """Groups that fit the unified buffer."""
    channels = x.shape[1] // coefficients.shape[3]
    return first_refusal(
        (
            channels <= MOST_CHANNELS,
            f"{channels} channels in a group, the kernel takes at most {MOST_CHANNELS}",
        )
    )
