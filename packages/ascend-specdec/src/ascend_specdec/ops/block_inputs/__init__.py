"""What a block draft model is given: one block of queries for each request, behind its context.

A block drafter (DFlash, DSpark) sees two kinds of rows. The step's tokens that were accepted become
context: their keys and values are made from the target's hidden states. Behind the last of them
stand ``Q`` queries: the token that the target chose last, the anchor, then mask tokens in whose
place the drafts are read.
"""

from __future__ import annotations

import torch
from ascend_ops_core.checks import INDICES, require_at_least, require_dtype, require_shape
from ascend_ops_core.errors import InvalidInputError
from ascend_ops_core.registry import declare

__all__ = ["PADDING_SLOT", "expand_blocks"]

PADDING_SLOT = -1
"""The slot of rows that are in no cache; writing to it changes nothing."""

_INT32 = (torch.int32,)


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
    *,
    mask_token: int,
    block_size: int,
    limit: int,
) -> None:
    """Fill the rows of all blocks, and the slots of the context in front of them.

    Request ``r`` brought the tokens ``query_start[r]`` to ``query_start[r + 1]``, of which the last
    ``rejected[r]`` do not stand; its context ends at ``e = seq_lens[r] - rejected[r]``. Query ``j``
    of its block lies at position ``e + j``, or, from ``limit`` on, at ``limit - 1`` and in no slot,
    so that a context that fills up inside a block neither reads nor writes beyond it. Its token is
    ``next_tokens[r]`` for ``j = 0`` and the mask token behind that (vLLM:
    ``v1/spec_decode/utils.py: copy_and_expand_dflash_inputs_kernel``; vllm-ascend:
    ``ops/triton/spec_decode/utils.py: copy_and_expand_dflash_and_dspark_inputs_kernel``).

    Args:
        tokens: ``[R * Q]`` int32; written.
        positions: ``[R * Q]`` int32 or int64; written.
        slots: ``[R * Q]`` int32 or int64; written, -1 for a row that is in no cache.
        context_slots: ``[N]`` int32 or int64, ``N`` at least the number of tokens; written as a
            whole, -1 for rejected tokens, for those from ``limit`` on and behind the last request.
        next_tokens: ``[R]`` int32 or int64.
        query_start: ``[R + 1]`` int32, ascending from 0.
        seq_lens: ``[R]`` int32 or int64, tokens of each request, this step's and the rejected ones
            among them.
        rejected: ``[R]`` int32 or int64, at most the request's tokens; None for none.
        block_table: at least ``[R, blocks]`` int32, rows without gaps; must hold the blocks of all
            positions below ``limit`` that are named here.
        mask_token: id.
        block_size: positions per block of the cache.
        limit: positions that the context can have.

    Raises:
        InvalidInputError: shapes, dtypes or numbers that do not fit each other; nothing was written
            then.
    """
    require_shape("next_tokens", next_tokens, None)
    require_dtype("next_tokens", next_tokens, INDICES)
    requests = next_tokens.shape[0]
    require_shape("tokens", tokens, None)
    require_dtype("tokens", tokens, _INT32)
    for name, rows in (("positions", positions), ("slots", slots)):
        require_shape(name, rows, tokens.shape[0])
        require_dtype(name, rows, INDICES)
    require_shape("context_slots", context_slots, None)
    require_dtype("context_slots", context_slots, INDICES)
    require_shape("query_start", query_start, requests + 1)
    require_dtype("query_start", query_start, _INT32)
    require_shape("seq_lens", seq_lens, requests)
    require_dtype("seq_lens", seq_lens, INDICES)
    if rejected is not None:
        require_shape("rejected", rejected, requests)
        require_dtype("rejected", rejected, INDICES)
    require_shape("block_table", block_table, None, None)
    require_dtype("block_table", block_table, _INT32)
    require_at_least("rows of block_table", block_table.shape[0], requests)
    require_at_least("block_size", block_size, 1)
    require_at_least("limit", limit, 1)
    if tokens.shape[0] % max(requests, 1) or (requests and not tokens.shape[0]):
        raise InvalidInputError(
            f"{tokens.shape[0]} rows for {requests} requests",
            "every request has the same number of queries, at least 1",
            "Pass requests * queries rows.",
        )
    if requests:
        _EXPAND_BLOCKS(
            tokens, positions, slots, context_slots, next_tokens, query_start, seq_lens, rejected,
            block_table, mask_token, block_size, limit,
        )  # fmt: skip
    else:
        context_slots.fill_(PADDING_SLOT)


_EXPAND_BLOCKS = declare(
    __name__,
    "expand_blocks(Tensor(a!) tokens, Tensor(b!) positions, Tensor(c!) slots, "
    "Tensor(d!) context_slots, Tensor next_tokens, Tensor query_start, Tensor seq_lens, "
    "Tensor? rejected, Tensor block_table, int mask_token, int block_size, int limit) -> ()",
    npu=("triton", "torch"),
    fake=lambda *args: None,
)
