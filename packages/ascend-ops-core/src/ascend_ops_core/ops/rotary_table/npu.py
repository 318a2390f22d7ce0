"""Limits of the NPU implementations of a rotary table's rows.

``npu_mrope`` rotates as well, from a table in the dtype of the heads, and is not called.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from ascend_ops_core.devices import DeviceFacts
from ascend_ops_core.support import Support, first_refusal

_MAX_PAIRS = 1024


def supports_gather_cos_sin_triton(
    facts: DeviceFacts, cos: torch.Tensor, sin: torch.Tensor, positions: torch.Tensor
) -> Support:
    """Rows that fit a vector."""
    return first_refusal(
        (
            cos.shape[1] <= _MAX_PAIRS,
            f"{cos.shape[1]} pairs, the kernel takes at most {_MAX_PAIRS}",
        )
    )


def supports_mrope_cos_sin_triton(
    facts: DeviceFacts,
    cos: torch.Tensor,
    sin: torch.Tensor,
    positions: torch.Tensor,
    sections: Sequence[int],
    interleaved: bool,
) -> Support:
    """Rows that fit a vector."""
    return supports_gather_cos_sin_triton(facts, cos, sin, positions)
