"""Definition of SwiGLU with quantised rows."""

from __future__ import annotations

import torch

from ascend_ops_core.ops.activation import reference as activation


def swiglu_quant(
    gate_up: torch.Tensor, groups: torch.Tensor | None, cumulative: bool, limit: float | None
) -> tuple[torch.Tensor, torch.Tensor]:
    """See :func:`ascend_ops_core.ops.swiglu_quant.swiglu_quant`."""
    rows, used = gate_up.shape[0], _used(gate_up, groups, cumulative)
    return _quantised(gate_up[:used].float(), rows, limit)


def dequant_swiglu_quant(
    gate_up: torch.Tensor,
    weight_scale: torch.Tensor,
    activation_scale: torch.Tensor,
    groups: torch.Tensor | None,
    cumulative: bool,
    limit: float | None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """See :func:`ascend_ops_core.ops.swiglu_quant.dequant_swiglu_quant`."""
    rows, used = gate_up.shape[0], _used(gate_up, groups, cumulative)
    if groups is None:
        scale = weight_scale.expand(used, -1)
    else:
        sizes = groups.diff(prepend=groups.new_zeros(1)) if cumulative else groups
        scale = weight_scale.repeat_interleave(sizes, dim=0)
    wide = gate_up[:used].float() * scale * activation_scale[:used, None]
    return _quantised(wide, rows, limit)


def _used(gate_up: torch.Tensor, groups: torch.Tensor | None, cumulative: bool) -> int:
    if groups is None:
        return gate_up.shape[0]
    return int(groups[-1] if cumulative else groups.sum())


def _quantised(
    gate_up: torch.Tensor, rows: int, limit: float | None
) -> tuple[torch.Tensor, torch.Tensor]:
    used = gate_up.shape[0]
    y = activation.silu_and_mul_with_clamp(gate_up, limit)
    scale = y.abs().amax(dim=-1) / 127
    # A row of zeros divides by 1, so that it stays zero.
    quantised = (y / torch.where(scale > 0, scale, 1)[:, None]).round().to(torch.int8)
    values = quantised.new_zeros(rows, y.shape[1])
    scales = scale.new_zeros(rows)
    values[:used] = quantised
    scales[:used] = scale
    return values, scales
