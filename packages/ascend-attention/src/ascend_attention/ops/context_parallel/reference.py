"""Definition of what ranks exchange that share a context, for any device."""

from __future__ import annotations

import torch

from ascend_attention.context_shard import ContextShard
from ascend_attention.ops.attention_states import reference as attention_states
from ascend_attention.ops.context_parallel.layout import packed_views, packed_words

# Behind every row.
_NOWHERE = torch.iinfo(torch.int32).max


def pack_attention_states(outs: torch.Tensor, lses: torch.Tensor, ranks: int) -> torch.Tensor:
    """See :func:`ascend_attention.ops.context_parallel.pack_attention_states`."""
    tokens, heads, width = outs.shape
    each, words = heads // ranks, packed_words(width, outs.dtype)
    packed = torch.zeros((ranks, tokens, each, words), dtype=torch.int32, device=outs.device)
    values, logarithms = packed_views(packed, width, outs.dtype)
    values.copy_(outs.unflatten(1, (ranks, each)).transpose(0, 1))
    logarithms.copy_(lses.unflatten(1, (ranks, each)).transpose(0, 1))
    return packed


def merge_packed_states(
    packed: torch.Tensor, width: int, dtype: torch.dtype
) -> tuple[torch.Tensor, torch.Tensor]:
    """See :func:`ascend_attention.ops.context_parallel.merge_packed_states`."""
    return attention_states.merge_attention_states(*packed_views(packed, width, dtype))


def local_tokens(
    selected: torch.Tensor, ranks: int, rank: int, interleave: int, places: int
) -> torch.Tensor:
    """See :func:`ascend_attention.ops.context_parallel.local_tokens`."""
    row = ContextShard(ranks, rank, interleave).row(selected)
    return in_front(torch.where(row >= 0, row, _NOWHERE), places)


def in_front(rows: torch.Tensor, places: int) -> torch.Tensor:
    """``[T, places]``: rows ``[T, K]`` in ascending order, then -1 for the largest integers."""
    ordered = rows.sort(dim=-1).values[:, :places]
    return torch.where(ordered == _NOWHERE, -1, ordered)
