"""Per-step metadata of caches with a row for every token."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from vllm.v1.attention.backend import AttentionMetadata

from ascend_attention.layers.context_routes import ContextRoutes
from ascend_attention.ops.paged_rows import RowIndex
from ascend_attention.step import StepLayout


@dataclass
class AscendMLAMetadata(AttentionMetadata):
    """What the layers of one cache group do in a step.

    Attributes:
        layout: the ragged batch.
        block_table: ``[R, nb]`` integer, blocks of every request in this group.
        write: where the row of every token goes; a negative block for one that is not written.
        routes: how tokens attend where ranks share contexts.
    """

    layout: StepLayout
    block_table: torch.Tensor
    write: RowIndex
    routes: ContextRoutes | None = None


def build_metadata(
    layout: StepLayout,
    block_table: torch.Tensor,
    slot_mapping: torch.Tensor,
    block_tokens: int,
) -> AscendMLAMetadata:
    """Metadata of one cache group for one step.

    Args:
        layout: the ragged batch.
        block_table: ``[R, nb]`` integer.
        slot_mapping: ``[T]`` integer, ``block * block_tokens + offset`` of every token; negative
            for tokens that must not be written.
        block_tokens: tokens per block.
    """
    slots = slot_mapping[: layout.num_tokens].long()
    # Rounding down gives padding, whose slots are negative, a negative block.
    block = torch.div(slots, block_tokens, rounding_mode="floor")
    return AscendMLAMetadata(layout, block_table, RowIndex(block, slots - block * block_tokens))
