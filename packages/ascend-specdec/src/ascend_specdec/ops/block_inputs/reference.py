"""Definition of a block's rows, without waiting for a device: shapes depend on no value."""

from __future__ import annotations

import torch


def expand_blocks(
    tokens: torch.Tensor,
    positions: torch.Tensor,
    slots: torch.Tensor,
    context_slots: torch.Tensor,
    next_tokens: torch.Tensor,
    query_start: torch.Tensor,
    seq_lens: torch.Tensor,
    rejected: torch.Tensor | None,
    block_table: torch.Tensor,
    mask_token: int,
    block_size: int,
    limit: int,
) -> None:
    """See :func:`ascend_specdec.ops.block_inputs.expand_blocks`."""
    requests = next_tokens.shape[0]
    queries = tokens.shape[0] // requests
    lens, starts = seq_lens.long(), query_start.long()
    ends = lens if rejected is None else lens - rejected.long()

    column = torch.arange(queries, device=tokens.device)
    place = ends.unsqueeze(1) + column
    every = torch.arange(requests, device=tokens.device).unsqueeze(1)
    token = torch.where(column == 0, next_tokens.unsqueeze(1), mask_token)
    tokens.copy_(token.flatten())
    positions.copy_(place.clamp(max=limit - 1).flatten())
    slots.copy_(_slots(block_table, every, place, block_size, limit).flatten())

    row = torch.arange(context_slots.shape[0], device=tokens.device)
    request = torch.searchsorted(starts[1:].contiguous(), row, right=True)
    inside = request < requests
    request = request.clamp(max=requests - 1)
    place = lens[request] - (starts[1:][request] - row)
    found = _slots(block_table, request, place, block_size, limit)
    context_slots.copy_(torch.where(inside & (place < ends[request]), found, -1))


def _slots(
    block_table: torch.Tensor,
    request: torch.Tensor,
    place: torch.Tensor,
    block_size: int,
    limit: int,
) -> torch.Tensor:
    """Slots of positions; -1 for those from ``limit`` on."""
    inside = (place >= 0) & (place < limit)
    entry = torch.where(inside, place // block_size, 0)
    found = block_table[request, entry].long() * block_size + place % block_size
    return torch.where(inside, found, -1)
