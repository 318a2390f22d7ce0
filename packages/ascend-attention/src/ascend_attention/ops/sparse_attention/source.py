"""One cache and the rows of it that each token attends to."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from ascend_attention.ops.packed_rows.reference import unpacked
from ascend_attention.ops.paged_rows import RowIndex, reference


@dataclass(frozen=True)
class RowSource:
    """Rows of one paged cache.

    Attributes:
        cache: ``[B, P, D]``, any strides; ``[B, P, bytes]`` uint8 where rows are packed.
        index: block and offset, each ``[T, N]`` int32 or int64; padding is not valid.
        valid: ``[T, N]`` bool, or None when all rows but padding are valid. Where it is False the
            index is an existing row or padding.
        rotary: rotated values of a packed row (:mod:`ascend_attention.ops.packed_rows`), or None
            where rows are not packed.
    """

    cache: torch.Tensor
    index: RowIndex
    valid: torch.Tensor | None
    rotary: int | None = None

    @property
    def width(self) -> int:
        """Rows per token, valid or not."""
        return self.index.block.shape[1]

    def rows(self, part: slice, width: int) -> tuple[torch.Tensor, torch.Tensor]:
        """``[t, N, D]`` float32 rows of some tokens, zeros where not valid, and the validity.

        Args:
            part: the tokens.
            width: ``D``.
        """
        block, offset = self.index.block[part], self.index.offset[part]
        valid = (block >= 0) & (offset >= 0)
        if self.valid is not None:
            valid &= self.valid[part]
        # Unused rows may hold NaN, which a softmax weight of zero would not silence.
        rows = reference.gather_rows(self.cache, block.masked_fill(~valid, -1), offset)
        if self.rotary is not None:
            return unpacked(rows, width, self.rotary), valid
        return rows.float(), valid


def sources_of(
    caches: Sequence[torch.Tensor],
    blocks: Sequence[torch.Tensor],
    offsets: Sequence[torch.Tensor],
    valid: Sequence[torch.Tensor | None],
    rotary: int | None,
) -> list[RowSource]:
    """The sources whose parts an operator is given as lists of tensors."""
    return [
        RowSource(cache, RowIndex(block, offset), mask, rotary)
        for cache, block, offset, mask in zip(caches, blocks, offsets, valid, strict=True)
    ]
