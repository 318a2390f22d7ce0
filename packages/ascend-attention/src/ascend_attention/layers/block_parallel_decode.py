"""Selecting blocks in decode with the ranks of a tensor-parallel group (MiniMax-M3).

Scores cost a pass over all index keys of a context, and every rank holds the whole index cache,
since its single key head is replicated. So instead of scoring its own heads on all blocks, of
which a rank with one head would waste most of a product's rows, a rank scores the heads of all
ranks on every ``P``-th block, and the ranks exchange the best of what they found:

1. all-gather of the index queries, without the copies of replicated heads;
2. scores of all heads on blocks ``r, r + P, r + 2 P, ...``, and their best ``K``;
3. one all-to-all in which each rank gets the candidates for its own heads, numbers and scores of
   each packed into one tensor of integers;
4. the best ``K`` of those ``P * K``.

Blocks are dealt out one by one rather than in runs, so that the ranks have equal work whatever the
lengths of the contexts, and so that nothing about a rank's share changes from step to step: no
table is cut, and a captured graph reads the engine's own buffers.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from ascend_ops_core.checks import require_at_least, require_shape
from ascend_ops_core.communication import all_to_all
from ascend_ops_core.errors import InvalidInputError

from ascend_attention.ops.block_selection import best_blocks, block_scores, columns_of


@dataclass(frozen=True)
class MiniMaxM3TPDecodeScoreMetadata:
    """What a rank scores in a step.

    The tensors are those that the metadata were built from, at the same addresses.

    Attributes:
        block_table: ``[R, nb]`` int32.
        request: ``[T]``, the request of every query.
        position: ``[T]``, its index within the request; negative for padding.
        first_block: the rank's first block.
        block_stride: from one of its blocks to the next.
        columns: blocks that it scores, the same number on every rank; those behind a request's
            last one are not seen.
    """

    block_table: torch.Tensor
    request: torch.Tensor
    position: torch.Tensor
    first_block: int
    block_stride: int
    columns: int


def build_tp_score_metadata(
    block_table: torch.Tensor,
    request: torch.Tensor,
    position: torch.Tensor,
    *,
    page: int,
    rank: int,
    ranks: int,
    most_tokens: int | None = None,
) -> MiniMaxM3TPDecodeScoreMetadata:
    """A rank's share of the blocks.

    Args:
        block_table: ``[R, nb]`` int32, blocks of every request in order.
        request: ``[T]`` int32 or int64.
        position: ``[T]`` int32 or int64.
        page: tokens of a block.
        rank: this rank, from 0.
        ranks: of the group.
        most_tokens: a bound for the longest context, the same on every rank; under a captured
            graph that of all steps. Left out, it is what a row of ``block_table`` can address.

    Raises:
        InvalidInputError: no such rank, or a bound beyond the table.
    """
    require_at_least("ranks", ranks, 1)
    require_at_least("page", page, 1)
    require_shape("block_table", block_table, None, None)
    if not 0 <= rank < ranks:
        raise InvalidInputError(
            f"rank={rank}", f"the group has ranks 0 to {ranks - 1}", "Pass rank_in_group."
        )
    columns = columns_of(block_table, page, most_tokens)
    return MiniMaxM3TPDecodeScoreMetadata(
        block_table, request, position, rank, ranks, -(-columns // ranks)
    )


def minimax_m3_index_tp_block_parallel_decode(
    query: torch.Tensor,
    key_cache: torch.Tensor,
    metadata: MiniMaxM3TPDecodeScoreMetadata,
    top_k: int,
    group: Any,
    *,
    total_heads: int,
    init_blocks: int = 0,
    local_blocks: int = 1,
) -> torch.Tensor:
    """:func:`ascend_attention.ops.block_selection.select_blocks`, its work shared by the ranks.

    Every rank makes the call, with the same number of queries.

    Args:
        query: ``[T, g, D]``, this rank's index heads; ``T`` may be 0.
        key_cache: ``[B, P, D]``, the same on every rank.
        metadata: this rank's.
        top_k: ``K``.
        group: the ranks (:class:`ascend_ops_core.communication.Group`).
        total_heads: ``G``, index heads of the model. With more ranks than heads ``ranks / G``
            neighbours hold the same one.
        init_blocks: blocks from the beginning that are taken first.
        local_blocks: blocks up to the query's own that are taken next.

    Returns:
        ``[T, g, K]`` int32, exactly what one rank alone would select.

    Raises:
        InvalidInputError: heads that the ranks cannot share evenly, or metadata of another group.
    """
    ranks = group.world_size
    copies = _copies(query, total_heads, ranks)
    if (metadata.first_block, metadata.block_stride) != (group.rank_in_group, ranks):
        raise InvalidInputError(
            f"metadata of rank {metadata.first_block} of {metadata.block_stride}",
            f"the call is made by rank {group.rank_in_group} of {ranks}",
            "Build the metadata for the group that selects.",
        )
    tokens, own, _ = query.shape
    if not tokens:
        return torch.empty((0, own, top_k), dtype=torch.int32, device=query.device)
    # Neighbours with the same head would score it twice.
    everyone = group.all_gather(query.contiguous(), 1)[:, ::copies] if ranks > 1 else query
    scores = block_scores(
        everyone,
        key_cache,
        metadata.block_table,
        metadata.request,
        metadata.position,
        metadata.columns,
        first_block=metadata.first_block,
        block_stride=metadata.block_stride,
        init_blocks=init_blocks,
        local_blocks=local_blocks,
    )
    ids, values = best_blocks(
        scores, top_k, first_block=metadata.first_block, block_stride=metadata.block_stride
    )
    if ranks == 1:
        return ids
    packed = torch.stack([ids, values.view(torch.int32)], dim=-1)
    parts = packed.unflatten(1, (total_heads // own, own)).transpose(0, 1)
    found = all_to_all(parts.repeat_interleave(copies, dim=0), group)
    # [ranks, T, g, K, 2] to [T, g, ranks * K, 2]
    found = found.permute(1, 2, 0, 3, 4).flatten(2, 3)
    ids, values = found.unbind(-1)
    return best_blocks(values.contiguous().view(torch.float32), top_k, ids=ids.contiguous())[0]


def _copies(query: torch.Tensor, total_heads: int, ranks: int) -> int:
    """Ranks that hold the same head.

    Raises:
        InvalidInputError: another number of heads on this rank than its share.
    """
    require_shape("query", query, None, None, None)
    require_at_least("total_heads", total_heads, 1)
    if max(total_heads, ranks) % min(total_heads, ranks):
        raise InvalidInputError(
            f"{total_heads} index heads on {ranks} ranks",
            "the ranks hold equally many heads, or equally many ranks hold each head",
            "Choose a tensor-parallel size that divides the heads or is a multiple of them.",
        )
    own = max(1, total_heads // ranks)
    if query.shape[1] != own:
        raise InvalidInputError(
            f"queries of {query.shape[1]} heads",
            f"{total_heads} heads on {ranks} ranks are {own} a rank",
            "Pass this rank's index heads.",
        )
    return max(1, ranks // total_heads)
