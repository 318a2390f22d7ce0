"""Definition of SwiGLU with quantised rows."""

from __future__ import annotations

import torch

from ascend_ops_core.ops.activation import reference as activation


def swiglu_quant(
    gate_up: torch.Tensor, groups: torch.Tensor | None, cumulative: bool, limit: float | None
) -> tuple[torch.Tensor, torch.Tensor]:
    """See :func:`ascend_ops_core.ops.swiglu_quant.swiglu_quant`."""
    rows = gate_up.shape[0]
    used = rows
    if groups is not None:
        used = int(groups[-1] if cumulative else groups.sum())
    y = activation.silu_and_mul_with_clamp(gate_up[:used].float(), limit)
    scale = y.abs().amax(dim=-1) / 127
    # A row of zeros divides by 1, so that it stays zero.
    quantised = (y / torch.where(scale > 0, scale, 1)[:, None]).round().to(torch.int8)
    values = quantised.new_zeros(rows, gate_up.shape[1] // 2)
    scales = scale.new_zeros(rows)
    values[:used] = quantised
    scales[:used] = scale
    return values, scales
