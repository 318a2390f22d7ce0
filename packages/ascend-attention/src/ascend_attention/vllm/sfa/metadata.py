"""Per-step metadata of sparse latent attention, all of it on the device but for bounds."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from vllm.v1.attention.backend import AttentionMetadata

from ascend_attention.layers.context_routes import ContextRoutes
from ascend_attention.ops.paged_rows import RowIndex


@dataclass
class AscendSFAMetadata(AttentionMetadata):
    """What the layers of one cache do with it in a step.

    Attributes:
        num_tokens: queries of the step, as far as the host knows; rows behind them are padding.
        block_table: ``[R, nb]`` int32, blocks of every request in this cache's group.
        query_ends: ``[R]`` int32, queries of the request and of all before it.
        seq_lens: ``[R]`` int32, context length of every request, its queries included.
        write: where the row of every query goes; a negative block for one that is not written.
        most_tokens: a bound for the longest context.
        routes: how tokens attend where ranks share contexts.
    """

    num_tokens: int
    block_table: torch.Tensor
    query_ends: torch.Tensor
    seq_lens: torch.Tensor
    write: RowIndex
    most_tokens: int
    routes: ContextRoutes | None = None


def rows_of_slots(slot_mapping: torch.Tensor, block_tokens: int) -> RowIndex:
    """Block and offset of every slot.

    Args:
        slot_mapping: ``[T]`` integer, ``block * block_tokens + offset``; negative for padding,
            which rounding down gives a negative block.
        block_tokens: tokens per block.
    """
    slots = slot_mapping.long()
    block = torch.div(slots, block_tokens, rounding_mode="floor")
    return RowIndex(block, slots - block * block_tokens)
