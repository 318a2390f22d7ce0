"""Definition of the turned selection, for any device; it asks the host for nothing."""

from __future__ import annotations

import torch


def k2q_csr(
    selected: torch.Tensor,
    cu_seqlens: torch.Tensor,
    cu_block_lens: torch.Tensor,
    order_method: int,
    rows: int,
    q_global_offset: bool,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """See :func:`ascend_attention.ops.block_csr.k2q_csr`."""
    tokens, heads, places = selected.shape
    requests, device = cu_seqlens.shape[0] - 1, selected.device
    query = torch.arange(tokens, dtype=torch.int32, device=device)
    if requests and rows:
        owner = torch.searchsorted(cu_seqlens[1:].contiguous(), query, right=True)
        inside = owner < requests
        owner = torch.where(inside, owner, 0)
        blocks = cu_block_lens[owner + 1] - cu_block_lens[owner]
        real = inside.view(-1, 1, 1) & (selected >= 0) & (selected < blocks.view(-1, 1, 1))
        row = torch.where(real, cu_block_lens[owner].view(-1, 1, 1) + selected, 0).long()
        if order_method:
            row = _by_level(cu_block_lens, rows)[row]
        row = torch.where(real, row, rows)
        local = query if q_global_offset else query - cu_seqlens[owner]
    else:
        row = torch.full_like(selected, rows, dtype=torch.int64)
        local = query
    # Entries stand in the order of queries and then of places, which a stable sort keeps.
    row, order = row.transpose(0, 1).flatten(1).sort(dim=1, stable=True)
    place = torch.arange(places, dtype=torch.int32, device=device).repeat(tokens)
    used = row < rows
    edges = torch.arange(rows + 1, device=device).expand(heads, -1).contiguous()
    row_ptr = torch.searchsorted(row.contiguous(), edges, out_int32=True)
    local = local.repeat_interleave(places)
    return row_ptr, torch.where(used, local[order], -1), torch.where(used, place[order], -1)


def _by_level(cu_block_lens: torch.Tensor, rows: int) -> torch.Tensor:
    """``[rows]``: where each row of the order by request stands in the order by level."""
    row = torch.arange(rows, dtype=torch.int32, device=cu_block_lens.device)
    owner = torch.searchsorted(cu_block_lens[1:].contiguous(), row, right=True)
    last = cu_block_lens.shape[0] - 1
    # Rows behind the last request keep their places.
    level = torch.where(owner < last, row - cu_block_lens[owner.clamp(max=last - 1)], rows)
    order = level.sort(stable=True).indices
    return torch.empty_like(order).scatter_(0, order, torch.arange(rows, device=order.device))
