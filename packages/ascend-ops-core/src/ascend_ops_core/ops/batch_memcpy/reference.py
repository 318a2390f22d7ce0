"""Definition of the copies."""

from __future__ import annotations

import torch


def batch_memcpy(
    destination: torch.Tensor,
    source: torch.Tensor,
    destination_offsets: torch.Tensor,
    source_offsets: torch.Tensor,
    sizes: torch.Tensor,
) -> None:
    """See :func:`ascend_ops_core.ops.batch_memcpy.batch_memcpy`."""
    ranges = zip(destination_offsets.tolist(), source_offsets.tolist(), sizes.tolist(), strict=True)
    for to, start, size in ranges:
        destination[to : to + size] = source[start : start + size]
