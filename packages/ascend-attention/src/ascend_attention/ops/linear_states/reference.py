"""Definitions of clearing and copying states.

Nothing is asked of the host that lies on the device: slots where nothing happens get what they
have, and those of nobody stand for slot 0.
"""

from __future__ import annotations

import torch


def clear_states(states: torch.Tensor, slots: torch.Tensor, cleared: torch.Tensor | None) -> None:
    """See :func:`ascend_attention.ops.linear_states.clear_states`."""
    if not slots.numel():
        return
    chosen = slots > 0 if cleared is None else (slots > 0) & cleared
    place = torch.where(chosen, slots, 0).long()
    kept = states[place]
    states[place] = torch.where(_over(chosen, kept), torch.zeros_like(kept), kept)


def copy_states(
    states: torch.Tensor,
    block_table: torch.Tensor,
    source: torch.Tensor,
    destination: torch.Tensor,
    shift: torch.Tensor | None,
) -> None:
    """See :func:`ascend_attention.ops.linear_states.copy_states`."""
    if not block_table.numel():
        return
    copied = (source >= 0) & (destination >= 0) & (source != destination)
    columns = [torch.where(copied, column, 0).long() for column in (source, destination)]
    blocks = [block_table.gather(1, column.unsqueeze(1))[:, 0].long() for column in columns]
    copied = copied & (blocks[0] > 0) & (blocks[1] > 0)
    start, to = (torch.where(copied, block, 0) for block in blocks)
    if shift is None:
        found, kept = states[start], states[to]
        states[to] = torch.where(_over(copied, kept), found, kept)
        return
    rows = states.shape[1]
    row = torch.arange(rows, device=states.device)
    behind = row + torch.where(copied, shift, 0).unsqueeze(1)
    found = states[start.unsqueeze(1), behind.clamp(max=rows - 1)]
    kept = states[to]
    states[to] = torch.where(_over(copied.unsqueeze(1) & (behind < rows), kept), found, kept)


def _over(chosen: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    return chosen.view(*chosen.shape, *([1] * (values.dim() - chosen.dim())))
