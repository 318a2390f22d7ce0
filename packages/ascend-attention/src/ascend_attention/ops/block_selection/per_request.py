"""The blocks' scores for a CPU with many queries: dense products per request."""

from __future__ import annotations

import itertools

import torch

from ascend_attention.ops.block_selection.reference import LEAST, NONE, with_priorities

# Products of one tile, in elements: large enough for efficient products, small enough for caches.
_TILE_ELEMENTS = 1 << 20
_TILE_QUERIES = 128


def block_scores(
    query: torch.Tensor,
    key_cache: torch.Tensor,
    block_table: torch.Tensor,
    request: torch.Tensor,
    position: torch.Tensor,
    columns: int,
    first_block: int,
    block_stride: int,
    init_blocks: int,
    local_blocks: int,
) -> torch.Tensor:
    """See :func:`ascend_attention.ops.block_selection.block_scores`."""
    tokens, heads, _ = query.shape
    page = key_cache.shape[1]
    scores = torch.full((tokens, heads, columns), LEAST)
    number = first_block + block_stride * torch.arange(columns)
    real = position >= 0
    for one in request[real].unique().tolist():
        mine = (real & (request == one)).nonzero().flatten()
        last = position[mine].long()
        used = int((number * page <= last.max()).sum())
        keys = key_cache[block_table[one, number[:used]].long()].float()
        for start in range(0, len(mine), _TILE_QUERIES):
            part = slice(start, start + _TILE_QUERIES)
            _score(query, keys, number, mine[part], last[part], scores)
    return with_priorities(scores, position, number, page, init_blocks, local_blocks)


def _score(
    query: torch.Tensor,
    keys: torch.Tensor,
    number: torch.Tensor,
    tokens: torch.Tensor,
    last: torch.Tensor,
    scores: torch.Tensor,
) -> None:
    """Scores of some queries of one request.

    Args:
        query: ``[T, G, D]``.
        keys: ``[w, P, D]`` float32, of blocks ``number[:w]``.
        number: ``[W]`` int64.
        tokens: ``[t]`` int64, the queries.
        last: ``[t]`` int64, their positions.
        scores: ``[T, G, W]``; written.
    """
    heads, page = query.shape[1], keys.shape[1]
    least, most = int(last.min()), int(last.max())
    whole = int(((number + 1) * page <= least + 1).sum())
    used = min(keys.shape[0], int((number * page <= most).sum()))
    wide = query[tokens].float().flatten(0, 1)
    step = max(1, _TILE_ELEMENTS // (wide.shape[0] * page))
    # Blocks that every query sees whole, then those of which some query does not.
    cuts = [*range(0, whole, step), *range(whole, used, step), used]
    for first, behind in itertools.pairwise(cuts):
        products = wide @ keys[first:behind].flatten(0, 1).T
        products = products.view(len(tokens), heads, behind - first, page)
        if behind > whole:
            place = number[first:behind, None] * page + torch.arange(page)
            hidden = place > last.view(-1, 1, 1)
            products.masked_fill_(hidden.unsqueeze(1), NONE)
        best = products.amax(dim=-1)
        if bool(best.isnan().any()):
            best = torch.where(products > LEAST, products, LEAST).amax(dim=-1)
        scores[tokens, :, first:behind] = torch.where(best > LEAST, best, LEAST)
