"""Definition of the gated activations."""

from __future__ import annotations

import torch
from torch.nn import functional as F


def silu_and_mul_with_clamp(gate_up: torch.Tensor, limit: float | None) -> torch.Tensor:
    """See :func:`ascend_ops_core.ops.activation.silu_and_mul_with_clamp`."""
    gate, up = gate_up.chunk(2, dim=-1)
    if limit:
        gate = gate.clamp(max=limit)
        up = up.clamp(min=-limit, max=limit)
    return F.silu(gate) * up
