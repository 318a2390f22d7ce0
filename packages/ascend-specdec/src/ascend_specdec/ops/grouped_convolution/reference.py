"""Definition of the grouped convolution."""

from __future__ import annotations

import torch


def grouped_convolution(
    x: torch.Tensor, base: torch.Tensor, coefficients: torch.Tensor, side: int, block: int
) -> torch.Tensor:
    """See :func:`ascend_specdec.ops.grouped_convolution.grouped_convolution`."""
    rows, width = x.shape
    taps, groups = coefficients.shape[2:]
    delta = coefficients[:, side].float().repeat_interleave(width // groups, dim=-1)
    weights = (base[side].float() + delta).view(-1, block, taps, width)
    blocks = x.float().view(-1, block, width)
    total = torch.zeros_like(blocks)
    for tap in range(min(taps, block)):
        total[:, tap:] += weights[:, tap:, tap] * blocks[:, : block - tap]
    return total.view(rows, width).to(x.dtype)
