"""Definition of the indexer's scores, selection and key rows, for any device.

Scores and selection ask the host for nothing that lies on the device.
"""

from __future__ import annotations

import torch
from ascend_ops_core.ops.quantization import dynamic_quantize

from ascend_attention.ops.indexer.selection import best_entries, entries_in_order

# Gathered keys and dot products of one tile of tokens, in elements: bounds the memory.
_TILE_ELEMENTS = 1 << 23


def indexer_scores(
    query: torch.Tensor,
    head_weights: torch.Tensor,
    key_cache: torch.Tensor,
    key_scale: torch.Tensor | None,
    block_table: torch.Tensor,
    request: torch.Tensor,
    visible: torch.Tensor,
    width: int,
) -> torch.Tensor:
    """See :func:`ascend_attention.ops.indexer.indexer_scores`."""
    tokens, heads, dim = query.shape
    scores = torch.full((tokens, width), float("-inf"), dtype=torch.float32, device=query.device)
    if not block_table.numel():
        return scores
    entry = torch.arange(width, device=query.device)
    column = entry // key_cache.shape[1]
    offset = entry - column * key_cache.shape[1]
    tile = max(1, _TILE_ELEMENTS // max(1, width * (heads + dim)))
    for start in range(0, tokens, tile):
        part = slice(start, start + tile)
        seen = entry < visible[part].unsqueeze(-1)
        # Where nothing is seen, neither the request nor the table need make sense.
        owner = torch.where(seen, request[part].unsqueeze(-1), 0).long()
        block = block_table[owner, torch.where(seen, column, 0)].long()
        block = torch.where(seen, block, 0)
        keys = _bytes(key_cache)[block, offset].view(key_cache.dtype).float()
        dots = torch.bmm(query[part].float(), keys.transpose(1, 2)).relu_()
        score = torch.bmm(head_weights[part].float().unsqueeze(1), dots).squeeze(1)
        if key_scale is not None:
            score = score * key_scale[block, offset].float()
        scores[part] = torch.where(seen, score, float("-inf"))
    return scores


def select_entries(
    query: torch.Tensor,
    head_weights: torch.Tensor,
    key_cache: torch.Tensor,
    key_scale: torch.Tensor | None,
    block_table: torch.Tensor,
    request: torch.Tensor,
    visible: torch.Tensor,
    top_k: int,
    most_entries: int,
) -> torch.Tensor:
    """See :func:`ascend_attention.ops.indexer.select_entries`."""
    if most_entries <= top_k:
        return entries_in_order(visible, top_k)
    scores = indexer_scores(
        query,
        head_weights,
        key_cache,
        key_scale,
        block_table,
        request,
        visible,
        most_entries,
    )
    return best_entries(scores, visible, top_k)


def quantize_index_rows(
    key_cache: torch.Tensor,
    scale_cache: torch.Tensor,
    rows: torch.Tensor,
    block: torch.Tensor,
    offset: torch.Tensor,
) -> None:
    """See :func:`ascend_attention.ops.indexer.quantize_index_rows`."""
    values, scale = dynamic_quantize(rows, key_cache.dtype)
    real = block >= 0
    at = block[real].long(), offset[real].long()
    _bytes(key_cache)[at] = _bytes(values)[real]
    scale_cache[at] = scale[real].to(scale_cache.dtype)


def _bytes(values: torch.Tensor) -> torch.Tensor:
    """Values of eight bits as integers, which torch can index on every device."""
    return values.view(torch.int8) if values.element_size() == 1 else values
