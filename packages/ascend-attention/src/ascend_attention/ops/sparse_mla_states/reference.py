"""Definition of the sparse MLA with its states, for any device; it asks the host for nothing."""

from __future__ import annotations

from collections.abc import Callable

import torch

from ascend_attention.ops.paged_rows.reference import gather_rows

# Gathered rows of one tile of queries, in elements.
_TILE_ELEMENTS = 1 << 20


def sparse_mla_states(
    query_latent: torch.Tensor,
    query_rope: torch.Tensor,
    latent_cache: torch.Tensor,
    rope_cache: torch.Tensor,
    selected: torch.Tensor,
    block_table: torch.Tensor,
    request: torch.Tensor,
    scale: float,
) -> tuple[torch.Tensor, torch.Tensor]:
    """See :func:`ascend_attention.ops.sparse_mla_states.sparse_mla_states`."""
    if not block_table.numel():
        selected = selected[:, :0]
    place = located(selected, block_table, request, latent_cache.shape[1])

    def rows(block: torch.Tensor, offset: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        latent = gather_rows(latent_cache, block, offset)
        return latent.float(), gather_rows(rope_cache, block, offset).float()

    return attend_with_states(query_latent, query_rope, rows, *place, scale)


def attend_with_states(
    query_latent: torch.Tensor,
    query_rope: torch.Tensor,
    rows: Callable[[torch.Tensor, torch.Tensor], tuple[torch.Tensor, torch.Tensor]],
    block: torch.Tensor,
    offset: torch.Tensor,
    scale: float,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Attention over rows that are gathered in tiles of queries, and its logarithms.

    Args:
        query_latent: ``[T, H, L]``.
        query_rope: ``[T, H, R]``.
        rows: float32 latents ``[t, K, L]`` and rotated parts ``[t, K, R]`` at places ``[t, K]``.
        block: ``[T, K]``, negative where there is no row.
        offset: ``[T, K]``.
        scale: factor on the dot products.
    """
    out = torch.zeros(query_latent.shape, dtype=query_latent.dtype, device=query_latent.device)
    lse = torch.full(query_latent.shape[:2], float("-inf"), device=query_latent.device)
    if not block.shape[1]:
        return out, lse
    width = query_latent.shape[2] + query_rope.shape[2]
    tile = max(1, _TILE_ELEMENTS // (block.shape[1] * width))
    for start in range(0, query_latent.shape[0], tile):
        part = slice(start, start + tile)
        latent, rope = rows(block[part], offset[part])
        logits = torch.bmm(query_latent[part].float(), latent.transpose(1, 2))
        logits += torch.bmm(query_rope[part].float(), rope.transpose(1, 2))
        absent = (block[part] < 0).unsqueeze(1)
        logits = (logits * scale).masked_fill(absent, float("-inf"))
        total = logits.logsumexp(dim=-1)
        # Without any row every difference is -inf minus itself.
        weights = (logits - total.unsqueeze(-1)).exp().masked_fill(absent, 0)
        out[part] = torch.bmm(weights, latent).to(out.dtype)
        lse[part] = total
    return out, lse


def located(
    selected: torch.Tensor, block_table: torch.Tensor, request: torch.Tensor, page: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Block and offset of every selected row, ``[T, K]`` int32 each; -1 where there is none."""
    real = selected >= 0
    row = torch.where(real, selected, 0)
    column = torch.div(row, page, rounding_mode="floor")
    owner = torch.where(real, request.unsqueeze(-1), 0)
    block = block_table[owner.long(), column.long()]
    return torch.where(real, block, -1), row - column * page
