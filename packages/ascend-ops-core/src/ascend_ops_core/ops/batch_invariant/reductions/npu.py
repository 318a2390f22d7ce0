"""Limits of the batch-invariant kernels.

torch_npu has no operator that promises the same bits for every batch, so there is no adaptor.
Not run on hardware.
"""

from __future__ import annotations

import torch

from ascend_ops_core.devices import DeviceFacts
from ascend_ops_core.support import Support, first_refusal

_FLOATS = (torch.float16, torch.bfloat16, torch.float32)


def _floats(x: torch.Tensor) -> Support:
    return first_refusal(
        (x.dtype in _FLOATS, f"dtype {x.dtype}, the kernel takes float16, bfloat16, float32")
    )


def supports_mean_batch_invariant_triton(
    facts: DeviceFacts, x: torch.Tensor, dim: int, keepdim: bool
) -> Support:
    """Any float dtype."""
    return _floats(x)


def supports_rms_norm_batch_invariant_triton(
    facts: DeviceFacts, x: torch.Tensor, weight: torch.Tensor | None, eps: float
) -> Support:
    """Any float dtype."""
    return _floats(x)


def supports_softmax_batch_invariant_triton(
    facts: DeviceFacts, x: torch.Tensor, dim: int
) -> Support:
    """Any float dtype."""
    return _floats(x)
