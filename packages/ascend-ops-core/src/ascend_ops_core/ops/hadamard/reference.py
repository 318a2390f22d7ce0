"""Definition of the Hadamard rotation."""

from __future__ import annotations

import torch


def hadamard(x: torch.Tensor, block: int, scale: float) -> torch.Tensor:
    """See :func:`ascend_ops_core.ops.hadamard.hadamard`."""
    y = x.float().unflatten(-1, (-1, block))
    half = 1
    while half < block:
        # Channels whose index differs in one bit become their sum and their difference.
        pairs = y.unflatten(-1, (-1, 2, half))
        low, high = pairs.unbind(-2)
        y = torch.stack((low + high, low - high), dim=-2).flatten(-3)
        half *= 2
    return (y * scale).flatten(-2).to(x.dtype)
