"""Block-sparse attention on a CPU: by queries, or by blocks where many queries share each."""

from __future__ import annotations

import torch
from ascend_ops_core.cpu_kernels import CpuKernels

from ascend_attention.ops.block_sparse_attention import by_block, reference

_cpu = CpuKernels("ascend_attention.ops.block_sparse_attention.cpu")

# Queries that select a block, on average, and tokens of a block, from which on dense products of
# both are faster. With shorter blocks it takes longer to collect the queries of each.
_MANY_QUERIES, _LONG_BLOCK = 16, 128


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
    given = query, key_cache, value_cache, selected, block_table, request, position
    kernels = _cpu.usable(*given)
    few = reference.block_sparse_attention
    if kernels is not None and kernels.supports(query, key_cache, value_cache):
        few = kernels.block_sparse_attention
        if key_cache.shape[1] < _LONG_BLOCK:
            return few(*given, scale)
    if query.shape[0] < _MANY_QUERIES or not block_table.numel() or not key_cache.numel():
        return few(*given, scale)
    real = position >= 0
    owner = torch.where(real, request, 0).long()
    # Of every request: blocks that its queries select, and blocks that there are to select from.
    requests, places = block_table.shape[0], selected.shape[2]
    blocks = torch.div(position.clamp(min=0), key_cache.shape[1], rounding_mode="floor").long() + 1
    chosen = torch.bincount(owner, blocks.clamp(max=places) * real, minlength=requests)
    reach = blocks.new_zeros(requests).scatter_reduce_(0, owner, blocks, "amax")
    many = real & (chosen >= _MANY_QUERIES * reach)[owner]
    if not bool(many.any()):
        return few(*given, scale)
    out = torch.zeros(query.shape, dtype=query.dtype)
    lse = torch.full(query.shape[:2], float("-inf"))
    for run, mine in ((by_block.block_sparse_attention, many), (few, real & ~many)):
        tokens = mine.nonzero().flatten()
        if len(tokens):
            out[tokens], lse[tokens] = run(
                query[tokens],
                key_cache,
                value_cache,
                selected[tokens],
                block_table,
                request[tokens],
                position[tokens],
                scale,
            )
    return out, lse
