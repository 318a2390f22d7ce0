"""Definition of the sparse MLA, for any device; it asks the host for nothing."""

from __future__ import annotations

from collections.abc import Callable

import torch

from ascend_attention.ops.paged_rows.reference import gather_rows
from ascend_attention.ops.token_indexer import owners

# Gathered rows of one tile of queries, in elements.
_TILE_ELEMENTS = 1 << 20


def sparse_mla(
    query_latent: torch.Tensor,
    query_rope: torch.Tensor,
    latent_cache: torch.Tensor,
    rope_cache: torch.Tensor,
    selected: torch.Tensor,
    block_table: torch.Tensor,
    query_ends: torch.Tensor,
    seq_lens: torch.Tensor,
    scale: float,
) -> torch.Tensor:
    """See :func:`ascend_attention.ops.sparse_mla.sparse_mla`."""
    if not selected.shape[1] or not block_table.numel():
        return torch.zeros_like(query_latent)
    place = located(selected, block_table, query_ends, seq_lens, latent_cache.shape[1])

    def rows(block: torch.Tensor, offset: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        latent = gather_rows(latent_cache, block, offset)
        return latent.float(), gather_rows(rope_cache, block, offset).float()

    return attend(query_latent, query_rope, rows, *place, scale)


def attend(
    query_latent: torch.Tensor,
    query_rope: torch.Tensor,
    rows: Callable[[torch.Tensor, torch.Tensor], tuple[torch.Tensor, torch.Tensor]],
    block: torch.Tensor,
    offset: torch.Tensor,
    scale: float,
) -> torch.Tensor:
    """Attention over rows that are gathered in tiles of queries.

    Args:
        query_latent: ``[T, H, L]``.
        query_rope: ``[T, H, R]``.
        rows: float32 latents ``[t, K, L]`` and rotated parts ``[t, K, R]`` at places ``[t, K]``;
            zeros where a block is negative.
        block: ``[T, K]``, negative where there is no row.
        offset: ``[T, K]``.
        scale: factor on the dot products.
    """
    out = torch.zeros(query_latent.shape, dtype=query_latent.dtype, device=query_latent.device)
    width = query_latent.shape[2] + query_rope.shape[2]
    tile = max(1, _TILE_ELEMENTS // (block.shape[1] * width))
    for start in range(0, query_latent.shape[0], tile):
        part = slice(start, start + tile)
        latent, rope = rows(block[part], offset[part])
        logits = torch.bmm(query_latent[part].float(), latent.transpose(1, 2))
        logits += torch.bmm(query_rope[part].float(), rope.transpose(1, 2))
        real = (block[part] >= 0).unsqueeze(1)
        weights = (logits * scale).masked_fill(~real, float("-inf")).softmax(dim=-1)
        # Without any row the softmax is NaN.
        weights = torch.where(real.any(-1, keepdim=True), weights, 0.0)
        out[part] = torch.bmm(weights, latent).to(out.dtype)
    return out


def located(
    selected: torch.Tensor,
    block_table: torch.Tensor,
    query_ends: torch.Tensor,
    seq_lens: torch.Tensor,
    page: int,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Block and offset of every selected token, ``[T, K]`` int32 each; -1 where there is none."""
    request, seen = owners(query_ends, seq_lens, selected.shape[0])
    real = (selected >= 0) & (seen > 0).unsqueeze(-1)
    token = torch.where(real, selected, 0)
    column = torch.div(token, page, rounding_mode="floor")
    block = block_table[request.long().unsqueeze(-1), column.long()]
    return torch.where(real, block, -1), token - column * page
