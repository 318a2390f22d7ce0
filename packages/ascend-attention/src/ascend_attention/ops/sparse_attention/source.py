"""One cache and the rows of it that each token attends to."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from ascend_attention.ops.paged_rows import RowIndex, gather_rows


@dataclass(frozen=True)
class RowSource:
    """Rows of one paged cache.

    Attributes:
        cache: ``[B, P, D]``.
        index: block and offset, each ``[T, N]``; any existing row where ``valid`` is False.
        valid: ``[T, N]`` bool, or None when all rows are valid.
    """

    cache: torch.Tensor
    index: RowIndex
    valid: torch.Tensor | None

    @property
    def width(self) -> int:
        """Rows per token, valid or not."""
        return self.index.block.shape[1]

    def rows(self, part: slice) -> tuple[torch.Tensor, torch.Tensor | None]:
        """``[t, N, D]`` float32 rows of some tokens, with zeros where invalid, and ``valid``."""
        index = RowIndex(self.index.block[part], self.index.offset[part])
        rows = gather_rows(self.cache, index).float()
        if self.valid is None:
            return rows, None
        valid = self.valid[part]
        # Unused rows may hold NaN, which a softmax weight of zero would not silence.
        return rows.masked_fill_(~valid.unsqueeze(-1), 0), valid
