"""Definition of the writes into a paged cache."""

from __future__ import annotations

import torch


def scatter_kv(cache: torch.Tensor, rows: torch.Tensor, slots: torch.Tensor, padded: bool) -> None:
    """See :func:`ascend_ops_core.ops.kv_scatter.scatter_kv`."""
    real = slots >= 0
    places = slots[real].long()
    block_size = cache.shape[1]
    cache[places // block_size, places % block_size] = rows[real]


def scatter_kv_pair(
    key_cache: torch.Tensor,
    value_cache: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    slots: torch.Tensor,
    padded: bool,
) -> None:
    """See :func:`ascend_ops_core.ops.kv_scatter.scatter_kv_pair`."""
    scatter_kv(key_cache, key, slots, padded)
    scatter_kv(value_cache, value, slots, padded)
