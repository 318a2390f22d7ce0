"""Which requests of a step send queries to the rows, and which get the rows to the queries.

Per layer and rank, a token of queries costs ``h * (P - 1)`` query rows in and as many results back,
a token of context one row. So a long prompt gets its context's rows, which all ranks then have,
and a decode, whose context is long for one token, sends its query. Both give the same sums; the
choice follows from sizes that the scheduler gives every rank alike, so ranks never differ.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from ascend_attention.context_shard import ContextShard
from ascend_attention.step import to_device

# A decode with drafts stays one path for all its requests, which graphs can hold.
_FEW_TOKENS = 16
MOST_ROWS = 1 << 17
"""Rows that a step may gather: bounds the memory of long contexts."""


@dataclass
class SentQueries:
    """Tokens that attend by sending their queries.

    Attributes:
        index: ``[T]`` int64, which of the step's tokens they are; None for all of them.
        request: ``[T]`` integer, request of every token in the step's block table.
        rows: ``[T]`` integer, rows on this rank that the token sees; 0 for none.
        most_rows: a bound for them that the host knows.
        most_tokens: the same for the tokens of the context that a token sees.
    """

    index: torch.Tensor | None
    request: torch.Tensor
    rows: torch.Tensor
    most_rows: int
    most_tokens: int


@dataclass
class GatheredRows:
    """Tokens that attend to gathered rows.

    Attributes:
        index: ``[T]`` int64, which of the step's tokens they are.
        blocks: ``[n]`` int64, this rank's blocks that are gathered.
        block_table: ``[R, nb]`` int32, for the gathered blocks; ``R`` requests of the step.
        request: ``[T]`` int64, request of every token in that table.
        position: ``[T]`` integer, the token's index within its request.
        query_ends: ``[R]`` int32, queries of the request and of those before it.
        seq_lens: ``[R]`` int32, context length of every request.
        most_tokens: a bound for the longest context.
    """

    index: torch.Tensor
    blocks: torch.Tensor
    block_table: torch.Tensor
    request: torch.Tensor
    position: torch.Tensor
    query_ends: torch.Tensor
    seq_lens: torch.Tensor
    most_tokens: int


@dataclass
class ContextRoutes:
    """How the tokens of a step attend.

    Attributes:
        sent: those that send queries, if any.
        gathered: those that attend to gathered rows, if any.
    """

    sent: SentQueries | None
    gathered: GatheredRows | None


def requests_to_gather(query_lens: Sequence[int], seq_lens: Sequence[int], heads: int) -> list[int]:
    """Requests for which their rows are fewer than the queries that would travel.

    Args:
        query_lens: tokens of every request in the step.
        seq_lens: context length of every request, or a bound for it.
        heads: query heads of all ranks that share a context.
    """
    chosen, rows = [], 0
    for request, (count, context) in enumerate(zip(query_lens, seq_lens, strict=True)):
        few = count <= _FEW_TOKENS or context > 2 * heads * count
        if not few and rows + context <= MOST_ROWS:
            chosen.append(request)
            rows += context
    return chosen


def routes_of(
    shard: ContextShard,
    request: torch.Tensor,
    position: torch.Tensor,
    block_table: torch.Tensor,
    page: int,
    most_tokens: int,
    known: tuple[Sequence[int], Sequence[int]] | None,
    heads: int,
) -> ContextRoutes:
    """Routes of a step's tokens.

    Args:
        shard: which tokens lie here.
        request: ``[T]`` integer on the device, the request of every token.
        position: ``[T]`` integer on the device, its index within the request; negative for padding.
        block_table: ``[R, nb]`` integer on the device, this rank's blocks of every request.
        page: rows of a block.
        most_tokens: a bound that the host knows for the longest context.
        known: for every request its tokens in the step and a bound for its context, which cover
            all tokens that are not padding; None where only the device knows, so that all tokens
            send their queries.
        heads: query heads of all ranks that share a context.
    """
    chosen = [] if known is None else requests_to_gather(*known, heads)
    if known is None or not chosen:
        return ContextRoutes(_sent(shard, None, request, position, most_tokens), None)
    query_lens, seq_lens = known
    picked = set(chosen)
    owner = torch.arange(len(query_lens)).repeat_interleave(torch.tensor(query_lens))
    here = torch.isin(owner, torch.tensor(chosen))
    device = request.device
    gathered = _gathered(
        shard, chosen, query_lens, seq_lens, position, block_table, page,
        *to_device(device, here.nonzero().flatten()),
    )  # fmt: skip
    rest = [r for r, count in enumerate(query_lens) if count and r not in picked]
    if not rest:
        return ContextRoutes(None, gathered)
    (index,) = to_device(device, (~here).nonzero().flatten())
    longest = min(most_tokens, max(seq_lens[r] for r in rest))
    return ContextRoutes(_sent(shard, index, request, position, longest), gathered)


def _sent(
    shard: ContextShard,
    index: torch.Tensor | None,
    request: torch.Tensor,
    position: torch.Tensor,
    most_tokens: int,
) -> SentQueries:
    if index is not None:
        request, position = request[index], position[index]
    rows = shard.count(position + 1)
    return SentQueries(index, request, rows, shard.most(most_tokens), most_tokens)


def _gathered(
    shard: ContextShard,
    chosen: Sequence[int],
    query_lens: Sequence[int],
    seq_lens: Sequence[int],
    position: torch.Tensor,
    block_table: torch.Tensor,
    page: int,
    index: torch.Tensor,
) -> GatheredRows:
    ranks, columns = shard.ranks, block_table.shape[1]
    counts = torch.tensor([min(-(-seq_lens[r] // (page * ranks)), columns) for r in chosen])
    lens = torch.tensor([query_lens[r] for r in chosen])
    before = counts.cumsum(0) - counts
    place = torch.arange(int(counts.max()) * ranks)
    inside = place < (counts * ranks).unsqueeze(-1)
    table = torch.where(inside, (before * ranks).unsqueeze(-1) + place, 0)
    device = block_table.device
    row, column = to_device(
        device,
        torch.tensor(chosen).repeat_interleave(counts),
        torch.arange(int(counts.sum())) - before.repeat_interleave(counts),
    )
    (flat,) = to_device(device, table.flatten())
    (owner,) = to_device(device, torch.arange(len(chosen)).repeat_interleave(lens))
    (ends,) = to_device(device, lens.cumsum(0))
    own = position[index]
    return GatheredRows(
        index,
        block_table[row, column].long(),
        flat.view(table.shape).int(),
        owner,
        own,
        ends.int(),
        # The last token of a request ends its context.
        (own[ends - 1] + 1).int(),
        max(seq_lens[r] for r in chosen),
    )
