"""Definition of the compressor's projections and pooling."""

from __future__ import annotations

import torch
from ascend_ops_core.ops.linear import linear


def project_states(
    hidden: torch.Tensor, wkv_wgate: torch.Tensor, ape: torch.Tensor, position: torch.Tensor
) -> torch.Tensor:
    """See :func:`ascend_attention.ops.compressor.project_states`."""
    rows = linear(hidden, wkv_wgate).float()
    kv, gate = rows.chunk(2, dim=-1)
    return torch.cat((kv, gate + ape[position % ape.shape[0]]), dim=-1)


def compress_windows(
    state_rows: torch.Tensor, first_entry: torch.Tensor, overlap: int
) -> torch.Tensor:
    """See :func:`ascend_attention.ops.compressor.compress_windows`."""
    if overlap == 1:
        return _pool(state_rows, None, overlap)
    return _pool(state_rows, _without_previous(state_rows.shape[1], first_entry, overlap), overlap)


def compress_paged_windows(
    state_cache: torch.Tensor,
    block: torch.Tensor,
    offset: torch.Tensor,
    first_entry: torch.Tensor,
    overlap: int,
) -> torch.Tensor:
    """See :func:`ascend_attention.ops.compressor.compress_paged_windows`."""
    exists = block >= 0
    rows = state_cache[torch.where(exists, block, 0), torch.where(exists, offset, 0)]
    absent = ~exists | _without_previous(block.shape[1], first_entry, overlap)
    pooled = _pool(rows, absent, overlap)
    return pooled.masked_fill(absent.all(dim=1, keepdim=True), 0)


def _without_previous(rows: int, first_entry: torch.Tensor, overlap: int) -> torch.Tensor:
    """``[N, rows]`` bool, the previous windows of first entries."""
    absent = torch.zeros((first_entry.shape[0], rows), dtype=torch.bool, device=first_entry.device)
    if overlap == 2:
        absent[:, : rows // 2] = first_entry.unsqueeze(-1)
    return absent


def _pool(state_rows: torch.Tensor, absent: torch.Tensor | None, overlap: int) -> torch.Tensor:
    kv, gate = state_rows.chunk(2, dim=-1)
    if overlap == 2:
        ratio = state_rows.shape[1] // 2
        kv = _own_series(kv, ratio)
        gate = _own_series(gate, ratio)
    if absent is not None:
        gate = gate.masked_fill(absent.unsqueeze(-1), float("-inf"))
        # Rows that never existed may hold anything, NaN included; weight zero is not enough.
        kv = kv.masked_fill(absent.unsqueeze(-1), 0)
    return (gate.softmax(dim=1) * kv).sum(dim=1)


def _own_series(rows: torch.Tensor, ratio: int) -> torch.Tensor:
    first, second = rows.chunk(2, dim=-1)
    return torch.cat((first[:, :ratio], second[:, ratio:]), dim=1)
