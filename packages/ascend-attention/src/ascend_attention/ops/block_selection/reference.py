"""Definition of the blocks' scores and of the best ones, for any device.

Nothing is asked of the host that lies on the device.
"""

from __future__ import annotations

import torch

NONE = float("-inf")
LEAST = -1e30
INIT = 1e30
LOCAL = 1e29

# Gathered keys and products of one tile of queries, in elements: bounds the memory.
_TILE_ELEMENTS = 1 << 23


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
    tokens, heads, width = query.shape
    page, device = key_cache.shape[1], query.device
    scores = torch.full((tokens, heads, columns), NONE, dtype=torch.float32, device=device)
    if not columns or not block_table.numel():
        return scores
    number = first_block + block_stride * torch.arange(columns, device=device)
    place = number.unsqueeze(-1) * page + torch.arange(page, device=device)
    tile = max(1, _TILE_ELEMENTS // (columns * page * (width + heads)))
    for start in range(0, tokens, tile):
        part = slice(start, start + tile)
        last = position[part].long().view(-1, 1, 1)
        seen = place <= last
        visible = seen[..., 0]
        # Where nothing is seen, neither the request nor the table need make sense.
        owner = torch.where(visible, request[part].unsqueeze(-1), 0).long()
        block = block_table[owner, torch.where(visible, number, 0)]
        keys = key_cache[torch.where(visible, block, 0).long()].float()
        keys = torch.where(seen.unsqueeze(-1), keys, 0.0).flatten(1, 2)
        products = torch.bmm(query[part].float(), keys.transpose(1, 2))
        products = products.unflatten(-1, (columns, page))
        products = torch.where(seen.unsqueeze(1) & (products > LEAST), products, LEAST)
        scores[part] = with_priorities(
            products.amax(dim=-1), position[part], number, page, init_blocks, local_blocks
        )
    return scores


def with_priorities(
    scores: torch.Tensor,
    position: torch.Tensor,
    number: torch.Tensor,
    page: int,
    init_blocks: int,
    local_blocks: int,
) -> torch.Tensor:
    """Scores with the blocks that are taken anyway in front, and -inf for those that are not seen.

    Args:
        scores: ``[t, G, W]`` float32.
        position: ``[t]``.
        number: ``[W]`` int64, the blocks.
        page: rows of a block.
        init_blocks: blocks from the beginning.
        local_blocks: blocks up to the query's own.
    """
    last = torch.div(position.long().clamp(min=-1), page, rounding_mode="floor").view(-1, 1, 1)
    scores = torch.where(number < init_blocks, INIT, scores)
    scores = torch.where(number > last - local_blocks, LOCAL, scores)
    return torch.where(number <= last, scores, NONE)


def best_blocks(
    scores: torch.Tensor,
    ids: torch.Tensor | None,
    top_k: int,
    first_block: int,
    block_stride: int,
) -> tuple[torch.Tensor, torch.Tensor]:
    """See :func:`ascend_attention.ops.block_selection.best_blocks`."""
    scores = torch.where(scores > NONE, scores, NONE)
    if ids is None:
        number = torch.arange(scores.shape[-1], dtype=torch.int32, device=scores.device)
        ids = (first_block + block_stride * number).expand(scores.shape)
    else:
        scores = torch.where(ids >= 0, scores, NONE)
        ids, order = ids.sort(dim=-1, stable=True)
        scores = scores.gather(-1, order)
    # A top-k of torch leaves open which of equal scores it keeps; a stable sort does not.
    values, order = scores.sort(dim=-1, descending=True, stable=True)
    values, order = values[..., :top_k], order[..., :top_k]
    chosen = torch.where(values > NONE, ids.gather(-1, order), -1)
    missing = (0, top_k - values.shape[-1])
    return (
        torch.nn.functional.pad(chosen, missing, value=-1),
        torch.nn.functional.pad(values, missing, value=NONE),
    )
