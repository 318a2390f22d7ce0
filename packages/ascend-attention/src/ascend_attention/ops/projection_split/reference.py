"""Definition of the split."""

from __future__ import annotations

import torch


def split_qkvz_ba(
    qkvz: torch.Tensor,
    ba: torch.Tensor,
    key_heads: int,
    value_heads: int,
    key_width: int,
    value_width: int,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """See :func:`ascend_attention.ops.projection_split.split_qkvz_ba`."""
    group = value_heads // key_heads
    sizes = [key_width, key_width, group * value_width, group * value_width]
    by_head = qkvz.unflatten(1, (key_heads, sum(sizes)))
    query, key, value, gate = by_head.split(sizes, dim=2)
    b, a = ba.unflatten(1, (key_heads, 2 * group)).split(group, dim=2)
    return (
        torch.cat([x.flatten(1) for x in (query, key, value)], dim=1),
        gate.reshape(-1, value_heads, value_width).contiguous(),
        b.flatten(1).contiguous(),
        a.flatten(1).contiguous(),
    )
