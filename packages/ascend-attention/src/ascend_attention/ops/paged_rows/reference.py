"""Definition of the row operators."""

from __future__ import annotations

import torch


def locate_rows(
    block_table: torch.Tensor, request: torch.Tensor, row: torch.Tensor, rows_per_block: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """See :func:`ascend_attention.ops.paged_rows.locate_rows`."""
    row = row.long()
    column = torch.div(row, rows_per_block, rounding_mode="floor")
    return block_table[request.long(), column].long(), row - column * rows_per_block


def gather_rows(cache: torch.Tensor, block: torch.Tensor, offset: torch.Tensor) -> torch.Tensor:
    """See :func:`ascend_attention.ops.paged_rows.gather_rows`."""
    padding = (block < 0) | (offset < 0)
    rows = cache[block.masked_fill(padding, 0).long(), offset.masked_fill(padding, 0).long()]
    # torch fills no 8-bit floats, whose zero has no bit set.
    bits = rows.view(torch.uint8) if rows.element_size() == 1 else rows
    bits.masked_fill_(padding.unsqueeze(-1), 0)
    return rows


def write_rows(
    cache: torch.Tensor, rows: torch.Tensor, block: torch.Tensor, offset: torch.Tensor
) -> None:
    """See :func:`ascend_attention.ops.paged_rows.write_rows`."""
    real = (block >= 0) & (offset >= 0)
    cache[block[real].long(), offset[real].long()] = rows[real].to(cache.dtype)
