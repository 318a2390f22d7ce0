"""Limits of the causal convolution on NPUs. Not run on hardware.

``npu_fused_causal_conv1d`` of torch_npu is not called: its documentation (2.13.0, A5 only) fixes
three taps, and supports neither an activation, a bias nor a request without a history.
"""

from __future__ import annotations

import torch
from ascend_ops_core.devices import DeviceFacts
from ascend_ops_core.support import Support, first_refusal

_MOST_TAPS = 4


def supports_causal_conv1d_triton(
    facts: DeviceFacts,
    x: torch.Tensor,
    weight: torch.Tensor,
    query_start: torch.Tensor,
    bias: torch.Tensor | None,
    states: torch.Tensor | None,
    slots: torch.Tensor | None,
    has_state: torch.Tensor | None,
    accepted: torch.Tensor | None,
    most_tokens: int,
    silu: bool,
) -> Support:
    """Up to four taps; rows without gaps inside."""
    return first_refusal(
        (
            weight.shape[0] <= _MOST_TAPS,
            f"{weight.shape[0]} taps, the kernel keeps the inputs of {_MOST_TAPS}",
        ),
        (
            x.shape[1] < 2 or x.stride(1) == 1,
            f"tokens with stride {x.stride(1)} inside, the kernel reads stride 1",
        ),
        (
            states is None or states.shape[2] < 2 or states.stride(2) == 1,
            "states with a stride inside, the kernel reads stride 1",
        ),
    )
