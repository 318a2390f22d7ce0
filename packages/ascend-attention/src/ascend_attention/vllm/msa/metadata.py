"""Per-step metadata of block-sparse attention, all of it on the device but for bounds."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from vllm.v1.attention.backend import AttentionMetadata

from ascend_attention.layers.block_parallel_decode import (
    MiniMaxM3TPDecodeScoreMetadata,
    build_tp_score_metadata,
)


@dataclass
class AscendMiniMaxM3Metadata(AttentionMetadata):
    """What the layers of one cache do with it in a step.

    Attributes:
        num_tokens: queries of the step, as far as the host knows; rows behind them are padding.
        block_table: ``[R, nb]`` int32, blocks of every request in this cache's group.
        request: ``[T]`` int32, the request of every query.
        position: ``[T]`` int32, its index within the request; negative for padding.
        slots: ``[T]`` integer, ``block * block_tokens + offset`` where the query's row goes;
            negative for one that is not written.
        most_tokens: a bound for the longest context, the same on all ranks.
        block_tokens: tokens per block.
        decodes: no request has more queries than a decode step with drafts.
    """

    num_tokens: int
    block_table: torch.Tensor
    request: torch.Tensor
    position: torch.Tensor
    slots: torch.Tensor
    most_tokens: int
    block_tokens: int
    decodes: bool
    _shared: MiniMaxM3TPDecodeScoreMetadata | None = field(default=None, repr=False)
    _all: torch.Tensor | None = field(default=None, repr=False)

    def visible_blocks(self) -> torch.Tensor:
        """``[T, 1, nb]`` int32: all blocks up to each query's own, in order, then -1."""
        if self._all is None:
            columns = -(-self.most_tokens // self.block_tokens)
            block = torch.arange(columns, dtype=torch.int32, device=self.position.device)
            own = torch.div(self.position, self.block_tokens, rounding_mode="floor").unsqueeze(-1)
            self._all = torch.where(block <= own, block, -1).unsqueeze(1)
        return self._all

    def shared_scores(self, rank: int, ranks: int) -> MiniMaxM3TPDecodeScoreMetadata:
        """How ``ranks`` share the blocks of this step's contexts; made once for all layers."""
        if self._shared is None:
            self._shared = build_tp_score_metadata(
                self.block_table,
                self.request,
                self.position,
                most_tokens=self.most_tokens,
                page=self.block_tokens,
                rank=rank,
                ranks=ranks,
            )
        return self._shared
