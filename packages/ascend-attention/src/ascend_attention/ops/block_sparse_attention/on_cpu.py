"""Block-sparse attention on a CPU: by queries where a request has few, by blocks where many."""

from __future__ import annotations

import torch
from ascend_ops_core.cpu_kernels import CpuKernels

from ascend_attention.ops.block_sparse_attention import by_block, reference

_cpu = CpuKernels("ascend_attention.ops.block_sparse_attention.cpu")

# Queries of a request from which on reading every block once, for all that selected it, is faster.
_MANY_QUERIES = 16


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
    if query.shape[0] < _MANY_QUERIES or not block_table.numel() or not key_cache.numel():
        return few(*given, scale)
    real = position >= 0
    owner = torch.where(real, request, 0).long()
    counts = torch.bincount(owner, real.double(), minlength=block_table.shape[0])
    many = real & (counts[owner] >= _MANY_QUERIES)
    if not bool(many.any()):
        return few(*given, scale)
    out = torch.zeros(query.shape, dtype=query.dtype)
    lse = torch.full(query.shape[:2], float("-inf"))
    for run, chosen in ((by_block.block_sparse_attention, many), (few, real & ~many)):
        tokens = chosen.nonzero().flatten()
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
