"""Definition of the sparse attention."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from ascend_attention.ops.sparse_attention.source import RowSource, sources_of

# Gathered rows of one tile of tokens, in elements: large enough for efficient products, small
# enough to stay in cache.
_TILE_ELEMENTS = 1 << 20


def sparse_attention(
    query: torch.Tensor,
    caches: list[torch.Tensor],
    blocks: list[torch.Tensor],
    offsets: list[torch.Tensor],
    valid: list[torch.Tensor | None],
    sinks: torch.Tensor,
    scale: float,
    rotary: int | None = None,
) -> torch.Tensor:
    """See :func:`ascend_attention.ops.sparse_attention.sparse_attention`."""
    return attend(query, sources_of(caches, blocks, offsets, valid, rotary), sinks, scale)


def attend(
    query: torch.Tensor, sources: Sequence[RowSource], sinks: torch.Tensor, scale: float
) -> torch.Tensor:
    """The same with the sources as one object each, in tiles of tokens."""
    sources = [source for source in sources if source.width]
    if not sources:
        return torch.zeros_like(query)
    tokens, _, width = query.shape
    out = torch.empty_like(query)
    tile = max(1, _TILE_ELEMENTS // max(1, sum(source.width for source in sources) * width))
    for start in range(0, tokens, tile):
        part = slice(start, min(start + tile, tokens))
        out[part] = _attend_tile(query[part], sources, part, sinks, scale)
    return out


def _attend_tile(
    query: torch.Tensor, sources: list[RowSource], part: slice, sinks: torch.Tensor, scale: float
) -> torch.Tensor:
    """Attention of the tokens ``part``, whose queries are ``query [t, H, D]``."""
    gathered = [source.rows(part, query.shape[2]) for source in sources]
    rows = torch.cat([r for r, _ in gathered], dim=1)
    valid = torch.cat([v for _, v in gathered], dim=1)
    logits = torch.bmm(query.float(), rows.transpose(1, 2)).mul_(scale)
    logits.masked_fill_(~valid.unsqueeze(1), float("-inf"))
    top = torch.maximum(logits.amax(dim=-1), sinks).unsqueeze(-1)
    weights = logits.sub_(top).exp_()
    total = weights.sum(dim=-1, keepdim=True) + (sinks.unsqueeze(-1) - top).exp()
    return torch.bmm(weights, rows).div_(total).to(query.dtype)
