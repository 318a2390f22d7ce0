"""Definition of the compressor's pooling."""

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
    kv, gate = state_rows.chunk(2, dim=-1)
    if overlap == 2:
        ratio = state_rows.shape[1] // 2
        kv = _own_series(kv, ratio)
        gate = _own_series(gate, ratio)
        absent = torch.zeros(gate.shape[:2], dtype=torch.bool, device=gate.device)
        absent[:, :ratio] = first_entry.unsqueeze(-1)
        gate = gate.masked_fill(absent.unsqueeze(-1), float("-inf"))
        # Rows that never existed may hold anything, NaN included; weight zero is not enough.
        kv = kv.masked_fill(absent.unsqueeze(-1), 0)
    return (gate.softmax(dim=1) * kv).sum(dim=1)


def _own_series(rows: torch.Tensor, ratio: int) -> torch.Tensor:
    first, second = rows.chunk(2, dim=-1)
    return torch.cat((first[:, :ratio], second[:, ratio:]), dim=1)
