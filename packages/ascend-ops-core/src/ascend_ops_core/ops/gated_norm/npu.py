"""Limits of the gated norms' kernels; torch_npu has no operator for them."""

from __future__ import annotations

import torch

from ascend_ops_core.devices import DeviceFacts
from ascend_ops_core.ops.norm.npu import takes_float
from ascend_ops_core.support import Support


def supports_rms_norm_gated_triton(
    facts: DeviceFacts,
    x: torch.Tensor,
    gate: torch.Tensor | None,
    weight: torch.Tensor | None,
    bias: torch.Tensor | None,
    eps: float,
    group_size: int,
    norm_before_gate: bool,
    activation: str,
) -> Support:
    """Any float dtypes, any group size."""
    return takes_float(x)


supports_layer_norm_gated_triton = supports_rms_norm_gated_triton
