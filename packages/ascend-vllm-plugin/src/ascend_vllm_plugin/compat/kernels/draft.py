"""vLLM's kernels around a draft model, by :mod:`ascend_specdec.ops.draft_inputs`.

Upstream symbols (0.27.1): ``vllm.v1.spec_decode.utils.eagle_step_slot_mapping_metadata_kernel``,
``eagle_prepare_inputs_padded_kernel`` and ``eagle_prepare_next_token_padded_kernel``. They exist
for Triton on CUDA and as C++ for CPU tensors.
"""

from __future__ import annotations

from typing import Any

import torch
from ascend_specdec.ops.draft_inputs import (
    PADDING_SLOT,
    next_positions,
    next_tokens_padded,
)
from ascend_specdec.ops.draft_inputs import prepare_inputs_padded as prepare


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
    assert PAD_ID == PADDING_SLOT
    next_positions(
        out_positions[:batch_size],
        out_slots,
        seq_lens[:batch_size],
        positions[:batch_size],
        block_table,
        block_size,
        max_model_len,
    )


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
    prepare(
        out_indices[:num_reqs],
        out_rejected[:num_reqs],
        cumulative_drafts[:num_reqs],
        valid_counts[:num_reqs],
        query_start_loc[: num_reqs + 1],
    )


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
    next_tokens_padded(
        out_next[:num_reqs],
        out_counts[:num_reqs],
        sampled[:num_reqs, :sampled_per_request],
        discarded[:num_reqs],
        backup[:num_reqs],
        vocab_size,
    )
