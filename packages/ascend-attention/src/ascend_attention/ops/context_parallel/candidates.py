"""The indexer's selection where ranks share a context: local candidates, then the best of all.

A rank's best tokens among its own are enough to find the best of the whole context. What is kept
and in which order of equals is the rule of :mod:`ascend_attention.ops.token_indexer`. Sorting is
torch's, on any device and without a copy to the host.
"""

from __future__ import annotations

from typing import NamedTuple

import torch

from ascend_attention.context_shard import ContextShard
from ascend_attention.ops.indexer import indexer_scores
from ascend_attention.ops.token_indexer.batch import best_tokens

# Scores of one tile of queries, in elements: bounds the memory of long contexts.
_MOST_SCORES = 1 << 24
# Behind every token, so that unused places stay last.
_NOWHERE = torch.iinfo(torch.int32).max


class Candidates(NamedTuple):
    """Tokens that a rank proposes.

    Attributes:
        tokens: ``[T, K]`` int32 token numbers within the query's request, -1 in unused places.
        scores: ``[T, K]`` float32, ``-inf`` in unused places.
    """

    tokens: torch.Tensor
    scores: torch.Tensor


def token_candidates(
    query: torch.Tensor,
    head_weights: torch.Tensor,
    key_cache: torch.Tensor,
    block_table: torch.Tensor,
    request: torch.Tensor,
    rows: torch.Tensor,
    top_k: int,
    most_rows: int,
    shard: ContextShard,
    *,
    key_scale: torch.Tensor | None = None,
) -> Candidates:
    """The best ``min(top_k, most_rows)`` tokens of each query among those that lie here.

    Args:
        query: ``[T, H, D]``, as :func:`ascend_attention.ops.indexer.indexer_scores` takes it.
        head_weights: ``[T, H]`` float32.
        key_cache: ``[B, P, D]`` keys of this rank.
        block_table: ``[R, nb]`` int32, blocks of every request on this rank in order.
        request: ``[T]`` int32 or int64, the request of every query.
        rows: ``[T]`` integer, rows here that each query sees; 0 for none.
        top_k: most tokens to propose, at least 1.
        most_rows: a bound that the host knows for ``rows``.
        shard: which tokens lie here.
        key_scale: ``[B, P]`` float32 or float16, given with keys of eight bits.
    """
    tokens, places = query.shape[0], min(top_k, most_rows)
    found = query.new_empty((tokens, places), dtype=torch.int32)
    values = query.new_empty((tokens, places), dtype=torch.float32)
    tile = max(1, _MOST_SCORES // max(most_rows, 1))
    for start in range(0, tokens if places else 0, tile):
        part = slice(start, start + tile)
        scores = indexer_scores(
            query[part],
            head_weights[part],
            key_cache,
            block_table,
            request[part],
            rows[part],
            most_rows,
            key_scale=key_scale,
        )
        chosen = best_tokens(scores, rows[part], places)
        own = scores.gather(1, chosen.clamp(min=0).long())
        found[part] = shard.token(chosen)
        values[part] = own.masked_fill(chosen < 0, float("-inf"))
    return Candidates(found, values)


def best_candidates(candidates: Candidates, top_k: int) -> torch.Tensor:
    """``[T, min(top_k, K)]`` int32: the best tokens that ranks propose, -1 in unused places.

    Among equal scores the earlier token is kept.

    Args:
        candidates: of all ranks that share the context, side by side, in any order.
        top_k: tokens to keep.
    """
    tokens = torch.where(candidates.tokens < 0, _NOWHERE, candidates.tokens)
    in_order, place = tokens.sort(dim=-1)
    scores = candidates.scores.gather(1, place)
    best = scores.sort(dim=-1, descending=True, stable=True).indices[:, :top_k]
    chosen = in_order.gather(1, best)
    return torch.where(chosen == _NOWHERE, -1, chosen)
