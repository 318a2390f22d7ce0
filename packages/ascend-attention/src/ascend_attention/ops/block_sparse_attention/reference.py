"""Definition of block-sparse attention, for any device; it asks the host for nothing."""

from __future__ import annotations

import torch

# Gathered keys and values of one tile of queries, in elements: bounds the memory.
_TILE_ELEMENTS = 1 << 22


def block_sparse_attention(
    query: torch.Tensor,
    key_cache: torch.Tensor,
    value_cache: torch.Tensor,
    selected: torch.Tensor,
    block_table: torch.Tensor,
    request: torch.Tensor,
    position: torch.Tensor,
    scale: float,
) -> tuple[torch.Tensor, torch.Tensor]:
    """See :func:`ascend_attention.ops.block_sparse_attention.block_sparse_attention`."""
    tokens, heads, width = query.shape
    page, groups = key_cache.shape[1:3]
    places, device = selected.shape[2], query.device
    out = torch.zeros(query.shape, dtype=query.dtype, device=device)
    lse = torch.full((tokens, heads), float("-inf"), device=device)
    if not places or not block_table.numel():
        return out, lse
    inside = torch.arange(page, device=device)
    group = torch.arange(groups, device=device).view(-1, 1, 1)
    tile = max(1, _TILE_ELEMENTS // (groups * places * page * width))
    for start in range(0, tokens, tile):
        part = slice(start, start + tile)
        last = position[part].view(-1, 1, 1)
        # An unused place ends the selection, and padding has none.
        used = ((selected[part] >= 0).cumprod(dim=-1) > 0) & (last >= 0)
        number = torch.where(used, selected[part], 0).long()
        owner = torch.where(last >= 0, request[part].view(-1, 1, 1), 0).long()
        block = torch.where(used, block_table[owner, number], 0).long().unsqueeze(-1)
        seen = used.unsqueeze(-1) & (number.unsqueeze(-1) * page + inside <= last.unsqueeze(-1))
        keys, values = (
            torch.where(seen.unsqueeze(-1), cache[block, inside, group].float(), 0.0).flatten(2, 3)
            for cache in (key_cache, value_cache)
        )
        grouped = query[part].float().unflatten(1, (groups, heads // groups))
        logits = (grouped @ keys.transpose(-1, -2)) * scale
        logits = logits.masked_fill(~seen.flatten(2, 3).unsqueeze(2), float("-inf"))
        total = logits.logsumexp(dim=-1, keepdim=True)
        # Without any token both are -inf, and their difference NaN.
        weights = torch.where(total > float("-inf"), (logits - total).exp(), 0.0)
        out[part] = (weights @ values).flatten(1, 2).to(out.dtype)
        lse[part] = total.flatten(1)
    return out, lse
