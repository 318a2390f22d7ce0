"""The lightning indexer's selection (DeepSeek-V4 paper equations 13 to 17).

Every query scores all compressed entries that it may see and keeps the best ``top_k``.
"""

from __future__ import annotations

import torch
from ascend_ops_core.cpu_kernels import CpuKernels

from ascend_attention.ops.indexer import batched, reference
from ascend_attention.step import StepLayout

_cpu = CpuKernels("ascend_attention.ops.indexer.cpu")

__all__ = ["select_entries"]


def select_entries(
    query: torch.Tensor,
    head_weights: torch.Tensor,
    key_cache: torch.Tensor,
    block_table: torch.Tensor,
    layout: StepLayout,
    ratio: int,
    top_k: int,
) -> torch.Tensor:
    """Entries that each token attends to.

    The score of entry ``s`` for token ``t`` is
    ``sum_h head_weights[t, h] * relu(query[t, h] . key[s])``.

    Args:
        query: ``[T, H, D]``, rotated.
        head_weights: ``[T, H]`` float32, scale factors included.
        key_cache: ``[B, P, D]`` paged indexer keys.
        block_table: ``[R, nb]``, wide enough for the longest request.
        layout: the step.
        ratio: tokens per entry.
        top_k: most entries that a token may keep.

    Returns:
        ``[T, N]`` int64 entry numbers within the token's request, ``N`` at most ``top_k``; -1
        marks unused places, which come last. A token that sees at most ``top_k`` entries keeps
        all of them. Between equal scores either may be chosen.
    """
    visible = layout.visible_entries(ratio)
    longest = layout.longest_context // ratio
    kernels = _cpu.usable(query, head_weights, key_cache)
    if longest > top_k and kernels is not None and kernels.supports(query, head_weights, key_cache):
        return kernels.select_entries(
            query, head_weights, key_cache, block_table, layout.request, visible, top_k
        )
    if longest > top_k and batched.supports(query, layout, longest):
        table = block_table[: len(layout.seq_lens)]
        return batched.select_entries(
            query, head_weights, key_cache, table, visible, longest, top_k
        )
    return reference.select_entries(
        query, head_weights, key_cache, block_table, layout, ratio, top_k
    )
