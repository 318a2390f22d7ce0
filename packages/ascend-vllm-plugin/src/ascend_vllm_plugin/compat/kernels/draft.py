"""vLLM's kernels around a draft model, in torch on any device, without waiting for the device.

Upstream symbols (0.27.1): ``vllm.v1.spec_decode.utils.eagle_step_slot_mapping_metadata_kernel``,
``eagle_prepare_inputs_padded_kernel`` and ``eagle_prepare_next_token_padded_kernel``. They exist
for Triton on CUDA and as C++ for CPU tensors.
"""

from __future__ import annotations

from typing import Any

import torch


def step_slot_mapping(
    positions: torch.Tensor,
    block_table: torch.Tensor,
    block_table_stride: int,
    seq_lens: torch.Tensor,
    out_positions: torch.Tensor,
    out_slots: torch.Tensor,
    *,
    block_size: int,
    max_model_len: int,
    PAD_ID: int,
    batch_size: int,
    **unused: Any,
) -> None:
    """Move each request on by one token.

    Args:
        positions: ``[R]`` position of each request's last token.
        block_table: ``[R, blocks]``.
        block_table_stride: not needed.
        seq_lens: ``[R]``, changed in place: one more, or 1 where the context is full.
        out_positions: ``[R]``, overwritten with the next position, 0 where the context is full.
        out_slots: ``[R]`` or longer, overwritten with the next token's slot; ``PAD_ID`` where the
            context is full and behind the requests.
        block_size: tokens per block.
        max_model_len: longest context.
        PAD_ID: the slot of tokens that are not cached.
        batch_size: ``R``.
        unused: constants of the Triton kernel.
    """
    following = positions[:batch_size] + 1
    full = following >= max_model_len
    following = following.masked_fill(full, 0)
    column = (following // block_size).clamp(max=block_table.shape[1] - 1)
    block = block_table[:batch_size].gather(1, column.long().unsqueeze(1)).squeeze(1)
    slots = block.long() * block_size + following % block_size
    out_slots[:batch_size] = slots.masked_fill(full, PAD_ID).to(out_slots.dtype)
    out_slots[batch_size:] = PAD_ID
    lens = (seq_lens[:batch_size] + 1).masked_fill(full, 1).clamp(max=max_model_len)
    seq_lens[:batch_size] = lens
    out_positions[:batch_size] = following.to(out_positions.dtype)


def prepare_inputs_padded(
    cumulative_drafts: torch.Tensor,
    valid_counts: torch.Tensor,
    query_start_loc: torch.Tensor,
    out_indices: torch.Tensor,
    out_rejected: torch.Tensor,
    num_reqs: int,
) -> None:
    """Find the last accepted token of each request.

    Args:
        cumulative_drafts: ``[R]`` drafted tokens up to and including each request.
        valid_counts: ``[R]`` tokens sampled for each request, the bonus token included.
        query_start_loc: ``[R + 1]`` first token of each request.
        out_indices: ``[R]``, overwritten with the token that the draft continues.
        out_rejected: ``[R]``, overwritten with the number of rejected drafts.
        num_reqs: ``R``.
    """
    drafts = torch.diff(cumulative_drafts[:num_reqs], prepend=cumulative_drafts.new_zeros(1))
    rejected = (drafts + 1 - valid_counts[:num_reqs]).masked_fill(drafts == 0, 0)
    out_rejected[:num_reqs] = rejected.to(out_rejected.dtype)
    last = query_start_loc[1 : num_reqs + 1] - 1
    out_indices[:num_reqs] = (last - rejected).to(out_indices.dtype)


def prepare_next_token_padded(
    sampled: torch.Tensor,
    discarded: torch.Tensor,
    backup: torch.Tensor,
    out_next: torch.Tensor,
    out_counts: torch.Tensor,
    vocab_size: int,
    sampled_per_request: int,
    num_reqs: int,
    *unused: Any,
    **constants: Any,
) -> None:
    """Find the token that each request goes on with.

    Args:
        sampled: ``[R, k + 1]`` sampled tokens, -1 behind the last.
        discarded: ``[R]`` bool, requests whose sample does not count.
        backup: ``[R]`` tokens of requests without a sample.
        out_next: ``[R]``, overwritten with the last sampled token, else the backup.
        out_counts: ``[R]``, overwritten with the number of sampled tokens.
        vocab_size: tokens from it on do not count.
        sampled_per_request: ``k + 1``.
        num_reqs: ``R``.
        unused: the stride of ``sampled``.
        constants: block sizes of the Triton kernel.
    """
    tokens = sampled[:num_reqs, :sampled_per_request]
    valid = (tokens != -1) & (tokens < vocab_size) & ~discarded[:num_reqs].bool().unsqueeze(1)
    place = torch.arange(1, sampled_per_request + 1, device=tokens.device)
    last = torch.where(valid, place, 0).amax(dim=1)
    found = tokens.gather(1, (last - 1).clamp(min=0).unsqueeze(1)).squeeze(1)
    chosen = torch.where(last > 0, found.to(out_next.dtype), backup[:num_reqs].to(out_next.dtype))
    out_next[:num_reqs] = chosen
    out_counts[:num_reqs] = valid.sum(dim=1).to(out_counts.dtype)
