"""Limits of the batch-invariant kernels.

torch_npu has no operator that promises the same bits for every batch, so there is no adaptor.
Not run on hardware.
"""

from __future__ import annotations

import torch

from ascend_ops_core.devices import DeviceFacts
from ascend_ops_core.support import Support, first_refusal

_FLOATS = (torch.float16, torch.bfloat16, torch.float32)


def _floats(*tensors: torch.Tensor) -> Support:
    first = tensors[0].dtype
    return first_refusal(
        (first in _FLOATS, f"dtype {first}, the kernel takes float16, bfloat16, float32"),
        (
            all(t.dtype == first for t in tensors),
            f"dtypes {[str(t.dtype) for t in tensors]}, the kernel takes one dtype",
        ),
    )


def supports_mm_batch_invariant_triton(
    facts: DeviceFacts, x: torch.Tensor, y: torch.Tensor
) -> Support:
    """One float dtype."""
    return _floats(x, y)


def supports_bmm_batch_invariant_triton(
    facts: DeviceFacts, x: torch.Tensor, y: torch.Tensor
) -> Support:
    """One float dtype."""
    return _floats(x, y)


def supports_addmm_batch_invariant_triton(
    facts: DeviceFacts,
    added: torch.Tensor,
    x: torch.Tensor,
    y: torch.Tensor,
    beta: float,
    alpha: float,
) -> Support:
    """One float dtype of ``x`` and ``y``."""
    return _floats(x, y)


def supports_linear_batch_invariant_triton(
    facts: DeviceFacts, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None
) -> Support:
    """One float dtype of ``x`` and ``weight``."""
    return _floats(x, weight)
