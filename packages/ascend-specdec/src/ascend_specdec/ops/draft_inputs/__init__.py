"""What a draft model is given after verification, without waiting for the device.

A step's batch stays as it is: R requests with the tokens that the target saw, rejected drafts among
them. The draft reads them all, and goes on from the last accepted one. Its caches hold rows of
rejected tokens until the next step writes these positions again. vLLM names this a padded drafter
batch (``v1/spec_decode/utils.py``).
"""

from __future__ import annotations

import torch
from ascend_ops_core.checks import INDICES, require_at_least, require_dtype, require_shape
from ascend_ops_core.errors import InvalidInputError
from ascend_ops_core.registry import declare

from ascend_specdec.ops.verification import MAX_DRAFTS

__all__ = ["PADDING_SLOT", "next_positions", "next_tokens_padded", "prepare_inputs_padded"]

PADDING_SLOT = -1
"""The slot of tokens that are not cached."""


def prepare_inputs_padded(
    out_indices: torch.Tensor,
    out_rejected: torch.Tensor,
    cumulative: torch.Tensor,
    valid_counts: torch.Tensor,
    query_start_loc: torch.Tensor,
) -> None:
    """Find the last accepted token of each request.

    A request with n drafts of which a were accepted has a + 1 valid tokens, so ``n - a`` of its
    rows at the end are rejected. One without drafts has none rejected.

    Args:
        out_indices: ``[R]`` int32 or int64, overwritten with the row that the draft goes on from.
            A request whose sample does not count (0 valid tokens) that had drafts gets the row
            in front of its first one: its draft is not to be used.
        out_rejected: ``[R]`` int32 or int64, overwritten with the number of rejected drafts.
        cumulative: ``[R]`` int32 or int64, drafts up to and including each request.
        valid_counts: ``[R]`` int32 or int64.
        query_start_loc: ``[R + 1]`` int32, the first row of each request.

    Raises:
        InvalidInputError: shapes or dtypes that do not belong together.
    """
    requests = cumulative.shape[0]
    for name, tensor, length in (
        ("out_indices", out_indices, requests),
        ("out_rejected", out_rejected, requests),
        ("cumulative", cumulative, requests),
        ("valid_counts", valid_counts, requests),
        ("query_start_loc", query_start_loc, requests + 1),
    ):
        require_shape(name, tensor, length)
        require_dtype(name, tensor, INDICES)
    if requests:
        _PREPARE(out_indices, out_rejected, cumulative, valid_counts, query_start_loc)


def next_tokens_padded(
    out_next: torch.Tensor,
    out_counts: torch.Tensor,
    sampled: torch.Tensor,
    discarded: torch.Tensor,
    backup: torch.Tensor,
    vocabulary: int,
) -> None:
    """Find the token that each request goes on with.

    Args:
        out_next: ``[R]`` int32 or int64, overwritten with the last sampled token, else the backup.
        out_counts: ``[R]`` int32 or int64, overwritten with the number of sampled tokens.
        sampled: ``[R, S + 1]`` int32 or int64; ids outside the vocabulary do not count.
        discarded: ``[R]`` bool, requests whose sample does not count.
        backup: ``[R]`` int32 or int64.
        vocabulary: ``V``.

    Raises:
        InvalidInputError: shapes or dtypes that do not belong together.
    """
    require_shape("sampled", sampled, None, None)
    require_dtype("sampled", sampled, INDICES)
    requests, width = sampled.shape
    for name, tensor in (
        ("out_next", out_next),
        ("out_counts", out_counts),
        ("backup", backup),
    ):
        require_shape(name, tensor, requests)
        require_dtype(name, tensor, INDICES)
    require_shape("discarded", discarded, requests)
    require_dtype("discarded", discarded, (torch.bool,))
    if not 1 <= width <= MAX_DRAFTS + 1:
        raise InvalidInputError(
            f"sampled of {width} columns",
            f"a row holds the bonus token and at most {MAX_DRAFTS} drafts",
            "Draft fewer tokens a step.",
        )
    if requests:
        _NEXT_TOKENS(out_next, out_counts, sampled, discarded, backup, vocabulary)


def next_positions(
    out_positions: torch.Tensor,
    out_slots: torch.Tensor,
    seq_lens: torch.Tensor,
    positions: torch.Tensor,
    block_table: torch.Tensor,
    block_size: int,
    limit: int,
) -> None:
    """Move each request on by one drafted token.

    A request whose context is full drafts at position 0 with one token of context, and caches
    nothing.

    Args:
        out_positions: ``[R]`` int32 or int64, overwritten; may be ``positions``.
        out_slots: ``[N]`` int32 or int64, ``N >= R``, overwritten as a whole; -1 behind the
            requests.
        seq_lens: ``[R]`` int32 or int64, changed: one more, or 1 where the context is full.
        positions: ``[R]`` int32 or int64, of each request's last token.
        block_table: at least ``[R, blocks]`` int32 or int64, rows in unit steps.
        block_size: tokens of a block.
        limit: longest context.

    Raises:
        InvalidInputError: shapes or dtypes that do not belong together.
    """
    requests = positions.shape[0]
    for name, tensor in (
        ("out_positions", out_positions),
        ("seq_lens", seq_lens),
        ("positions", positions),
    ):
        require_shape(name, tensor, requests)
        require_dtype(name, tensor, INDICES)
    require_shape("out_slots", out_slots, None)
    require_dtype("out_slots", out_slots, INDICES)
    require_at_least("len(out_slots)", out_slots.shape[0], requests)
    require_shape("block_table", block_table, None, None)
    require_dtype("block_table", block_table, INDICES)
    require_at_least("rows of block_table", block_table.shape[0], requests)
    require_at_least("block_size", block_size, 1)
    if requests or out_slots.numel():
        _NEXT_POSITIONS(
            out_positions, out_slots, seq_lens, positions, block_table, block_size, limit
        )


_PREPARE = declare(
    __name__,
    "prepare_inputs_padded(Tensor(a!) out_indices, Tensor(b!) out_rejected, Tensor cumulative, "
    "Tensor valid_counts, Tensor query_start_loc) -> ()",
    npu=("triton", "torch"),
    fake=lambda *arguments: None,
)
_NEXT_TOKENS = declare(
    __name__,
    "next_tokens_padded(Tensor(a!) out_next, Tensor(b!) out_counts, Tensor sampled, "
    "Tensor discarded, Tensor backup, int vocabulary) -> ()",
    npu=("triton", "torch"),
    fake=lambda *arguments: None,
)
_NEXT_POSITIONS = declare(
    __name__,
    "next_positions(Tensor(a!) out_positions, Tensor(b!) out_slots, Tensor(c!) seq_lens, "
    "Tensor positions, Tensor block_table, int block_size, int limit) -> ()",
    npu=("triton", "torch"),
    fake=lambda *arguments: None,
)
