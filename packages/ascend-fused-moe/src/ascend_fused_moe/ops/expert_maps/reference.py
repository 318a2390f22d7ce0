"""Definition of the mapping to physical experts."""

from __future__ import annotations

import torch


def map_to_physical_and_record(
    ids: torch.Tensor,
    table: torch.Tensor,
    load: torch.Tensor | None,
    num_unpadded_tokens: torch.Tensor | None,
    offset: int,
) -> torch.Tensor:
    """See :func:`ascend_fused_moe.ops.expert_maps.map_to_physical_and_record`."""
    experts, period = table.shape
    token = torch.arange(ids.shape[0], device=ids.device)[:, None]
    logical = ids.long()
    chosen = (logical >= 0) & (logical < experts)
    place = table[torch.where(chosen, logical, 0), (token + offset) % period].long()
    place = torch.where(chosen, place, -1)
    if load is not None:
        counted = place >= 0
        if num_unpadded_tokens is not None:
            counted &= token < num_unpadded_tokens
        # Adding 0 somewhere costs less than finding out on the host how many there are to add.
        where = torch.where(counted, place, 0).flatten()
        load.index_add_(0, where, counted.flatten().to(load.dtype))
    return place.to(ids.dtype)
