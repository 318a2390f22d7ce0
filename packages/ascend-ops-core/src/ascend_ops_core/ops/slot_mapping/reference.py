"""Definition of the slot mapping."""

from __future__ import annotations

import torch


def compute_slot_mapping(
    slots: torch.Tensor,
    query_start_loc: torch.Tensor,
    positions: torch.Tensor,
    block_table: torch.Tensor,
    block_size: int,
    ranks: int,
    rank: int,
    interleave: int,
) -> None:
    """See :func:`ascend_ops_core.ops.slot_mapping.compute_slot_mapping`."""
    slots.fill_(-1)
    starts = query_start_loc.long()
    tokens = int(starts[-1])
    if tokens == 0:
        return
    lengths = starts[1:] - starts[:-1]
    requests = torch.repeat_interleave(
        torch.arange(len(lengths), device=slots.device), lengths, output_size=tokens
    )
    x = positions[:tokens].long()
    entry = x // (block_size * ranks)
    offset = x % (block_size * ranks)
    local = offset // (ranks * interleave) * interleave + offset % interleave
    found = block_table[requests, entry].long() * block_size + local
    mine = offset // interleave % ranks == rank
    slots[:tokens] = torch.where(mine, found, -1).to(slots.dtype)
