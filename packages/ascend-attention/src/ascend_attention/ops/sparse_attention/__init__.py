"""Attention over a sliding window and selected compressed entries, with sinks.

DeepSeek-V4 shares one key-value head among all query heads, and its rows are key and value at
once. Each head has a sink logit that takes part in the softmax and adds nothing to the output.
"""

from __future__ import annotations

import torch
from ascend_ops_core.cpu_kernels import CpuKernels

from ascend_attention.ops.sparse_attention import reference
from ascend_attention.ops.sparse_attention.source import RowSource

_cpu = CpuKernels("ascend_attention.ops.sparse_attention.cpu")

__all__ = ["RowSource", "sparse_attention"]

# Gathered rows of one tile of tokens, in elements: large enough for efficient products, small
# enough to stay in cache.
_TILE_ELEMENTS = 1 << 20


def sparse_attention(
    query: torch.Tensor, sources: list[RowSource], sinks: torch.Tensor, scale: float
) -> torch.Tensor:
    """Attend to the rows of all sources together.

    Args:
        query: ``[T, H, D]``.
        sources: where each token's rows are; every token needs at least one valid row.
        sinks: ``[H]`` float32 logits.
        scale: factor on the dot products.

    Returns:
        ``[T, H, D]`` in ``query.dtype``; softmax and sums in float32.
    """
    kernels = _cpu.usable(query, sinks, *(source.cache for source in sources))
    if kernels is not None and kernels.supports(query, sources, sinks):
        return kernels.sparse_attention(query, sources, sinks, scale)
    tokens, _, width = query.shape
    out = torch.empty_like(query)
    rows = sum(source.width for source in sources)
    tile = max(1, _TILE_ELEMENTS // max(1, rows * width))
    for start in range(0, tokens, tile):
        part = slice(start, min(start + tile, tokens))
        out[part] = reference.sparse_attention(query[part], sources, part, sinks, scale)
    return out
