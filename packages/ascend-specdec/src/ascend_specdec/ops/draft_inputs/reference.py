"""Definitions of what a draft model is given."""

from __future__ import annotations

import torch


def prepare_inputs_padded(
    out_indices: torch.Tensor,
    out_rejected: torch.Tensor,
    cumulative: torch.Tensor,
    valid_counts: torch.Tensor,
    query_start_loc: torch.Tensor,
) -> None:
    """See :func:`ascend_specdec.ops.draft_inputs.prepare_inputs_padded`."""
    drafts = torch.diff(cumulative, prepend=cumulative.new_zeros(1))
    rejected = (drafts + 1 - valid_counts).masked_fill(drafts == 0, 0)
    out_rejected.copy_(rejected)
    out_indices.copy_(query_start_loc[1:] - 1 - rejected)


def next_tokens_padded(
    out_next: torch.Tensor,
    out_counts: torch.Tensor,
    sampled: torch.Tensor,
    discarded: torch.Tensor,
    backup: torch.Tensor,
    vocabulary: int,
) -> None:
    """See :func:`ascend_specdec.ops.draft_inputs.next_tokens_padded`."""
    valid = (sampled >= 0) & (sampled < vocabulary) & ~discarded.unsqueeze(1)
    place = torch.arange(1, sampled.shape[1] + 1, device=sampled.device)
    last = torch.where(valid, place, 0).amax(dim=1)
    found = sampled.gather(1, (last - 1).clamp(min=0).unsqueeze(1)).squeeze(1)
    out_next.copy_(torch.where(last > 0, found.to(backup.dtype), backup))
    out_counts.copy_(valid.sum(dim=1))


def next_positions(
    out_positions: torch.Tensor,
    out_slots: torch.Tensor,
    seq_lens: torch.Tensor,
    positions: torch.Tensor,
    block_table: torch.Tensor,
    block_size: int,
    limit: int,
) -> None:
    """See :func:`ascend_specdec.ops.draft_inputs.next_positions`."""
    requests = positions.shape[0]
    out_slots[requests:] = -1
    if not requests:
        return
    following = positions + 1
    full = following >= limit
    following = following.masked_fill(full, 0)
    column = (following // block_size).clamp(max=block_table.shape[1] - 1)
    block = block_table[:requests].gather(1, column.long().unsqueeze(1)).squeeze(1)
    slots = block.long() * block_size + following % block_size
    out_slots[:requests] = slots.masked_fill(full, -1).to(out_slots.dtype)
    seq_lens.copy_((seq_lens + 1).masked_fill(full, 1).clamp(max=limit))
    out_positions.copy_(following)
