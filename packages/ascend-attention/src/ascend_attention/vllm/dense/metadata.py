"""Per-step metadata of a cache of keys and values."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from vllm.v1.attention.backend import AttentionMetadata

from ascend_attention.step import UniformLayout, to_device


@dataclass
class AscendAttentionMetadata(AttentionMetadata):
    """What the layers of one cache group do in a step.

    Attributes:
        request: ``[T]`` int64, the request of every token.
        position: ``[T]`` int64, the last index within its request that a token sees; its own, or
            the request's last one where attention is not causal. Negative for padding.
        block_table: ``[R, nb]`` int32, blocks of every request in this group.
        slots: ``[T]`` integer, row of every token in the cache; negative for one that is not
            written.
        query_ends: ``R`` ends of the requests' tokens; empty where the device alone knows lengths.
        seq_lens: ``R`` context lengths; the same.
    """

    request: torch.Tensor
    position: torch.Tensor
    block_table: torch.Tensor
    slots: torch.Tensor
    query_ends: tuple[int, ...] = ()
    seq_lens: tuple[int, ...] = ()

    @property
    def num_tokens(self) -> int:
        """Tokens of the step, those behind the last request excluded."""
        return self.request.shape[0]


def build_metadata(
    query_start: torch.Tensor,
    seq_lens: torch.Tensor,
    known_lens: torch.Tensor | None,
    block_table: torch.Tensor,
    slot_mapping: torch.Tensor,
    causal: bool = True,
) -> AscendAttentionMetadata:
    """Metadata of one cache group for one step of any lengths.

    Args:
        query_start: ``[R + 1]`` on the host, first token of every request in the flat batch.
        seq_lens: ``[R]`` context lengths on the device, this step's tokens included.
        known_lens: the same on the host, or None if only the device knows them.
        block_table: ``[R, nb]`` integer.
        slot_mapping: at least ``[T]`` integer, ``block * block_tokens + offset`` of every token.
        causal: a token sees none behind it; otherwise all of its request, and host lengths, which
            stand for a causal step, are left out.
    """
    starts = query_start.long()
    query_lens = starts.diff()
    tokens = int(starts[-1])
    request = torch.arange(len(query_lens)).repeat_interleave(query_lens)
    back = starts[1:].repeat_interleave(query_lens) - torch.arange(tokens)
    if not causal:
        back = torch.ones_like(back)
    request, back = to_device(seq_lens.device, request, back)
    ends = lens = ()
    if known_lens is not None and causal:
        ends, lens = tuple(starts[1:].tolist()), tuple(known_lens.tolist())
    position = seq_lens.long()[request] - back
    return AscendAttentionMetadata(
        request, position, block_table, slot_mapping[:tokens], ends, lens
    )


def build_uniform_metadata(
    layout: UniformLayout, block_table: torch.Tensor, slot_mapping: torch.Tensor
) -> AscendAttentionMetadata:
    """Metadata that a captured graph computes from the buffers that it reads.

    Args:
        layout: as many tokens of every request, lengths on the device.
        block_table: ``[R, nb]`` integer.
        slot_mapping: at least ``[T]`` integer.
    """
    return AscendAttentionMetadata(
        layout.request, layout.position, block_table, slot_mapping[: layout.num_tokens]
    )
