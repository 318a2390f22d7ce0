"""Definition of the rows of a rotary table."""

from __future__ import annotations

from collections.abc import Sequence

import torch


def gather_cos_sin(
    cos: torch.Tensor, sin: torch.Tensor, positions: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """See :func:`ascend_ops_core.ops.rotary_table.gather_cos_sin`."""
    inside = (positions >= 0) & (positions < cos.shape[0])
    rows = torch.where(inside, positions, 0)
    outside = ~inside[..., None]
    return cos[rows].masked_fill(outside, torch.nan), sin[rows].masked_fill(outside, torch.nan)


def mrope_cos_sin(
    cos: torch.Tensor,
    sin: torch.Tensor,
    positions: torch.Tensor,
    sections: Sequence[int],
    interleaved: bool,
) -> tuple[torch.Tensor, torch.Tensor]:
    """See :func:`ascend_ops_core.ops.rotary_table.mrope_cos_sin`."""
    kind = kind_of_pairs(sections, interleaved).to(positions.device)
    # [3, T, P] of which every pair takes one of the three.
    three = gather_cos_sin(cos, sin, positions)
    pairs = torch.arange(cos.shape[1], device=positions.device)
    return three[0][kind, :, pairs].t().contiguous(), three[1][kind, :, pairs].t().contiguous()


def kind_of_pairs(sections: Sequence[int], interleaved: bool) -> torch.Tensor:
    """0, 1 or 2 for every pair: whether it takes time, height or width."""
    if not interleaved:
        return torch.repeat_interleave(torch.arange(3), torch.tensor(list(sections)))
    kind = torch.zeros(sum(sections), dtype=torch.int64)
    for one in (1, 2):
        kind[one : 3 * sections[one] : 3] = one
    return kind
