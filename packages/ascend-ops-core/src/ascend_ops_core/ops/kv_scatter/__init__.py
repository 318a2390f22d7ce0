"""Writing rows into a paged cache."""

from __future__ import annotations

import torch

from ascend_ops_core.checks import INDICES, require_dtype, require_shape
from ascend_ops_core.registry import declare

__all__ = ["scatter_kv", "scatter_kv_pair"]


def scatter_kv(
    cache: torch.Tensor, rows: torch.Tensor, slots: torch.Tensor, *, padded: bool = True
) -> None:
    """Write token ``t`` to slot ``slots[t]`` of a paged cache, in place.

    Slot ``s`` is row ``s % block_size`` of block ``s // block_size``. A negative slot is padding
    and changes no byte of the cache.

    Args:
        cache: ``[blocks, block_size, heads, dim]``, any dtype, any strides (a view of a larger
            cache, heads before positions); written.
        rows: ``[T, heads, dim]`` of the same dtype, any strides; ``T`` may be 0.
        slots: ``[T]`` int32 or int64, below ``blocks * block_size``, different from each other
            where they are not negative.
        padded: whether slots may be negative. Without padding torch_npu's operators can serve,
            which have no notion of it.

    Raises:
        InvalidInputError: another shape or dtype; nothing was written then.
    """
    _require_fit("cache", cache, "rows", rows, slots)
    _SCATTER_KV(cache, rows, slots, padded)


def scatter_kv_pair(
    key_cache: torch.Tensor,
    value_cache: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    slots: torch.Tensor,
    *,
    padded: bool = True,
) -> None:
    """:func:`scatter_kv` of keys and of values, whose last axes may differ.

    Args:
        key_cache: ``[blocks, block_size, heads, dim]``; written.
        value_cache: ``[blocks, block_size, heads, value_dim]``; written.
        key: ``[T, heads, dim]``.
        value: ``[T, heads, value_dim]``.
        slots: ``[T]``.
        padded: whether slots may be negative.

    Raises:
        InvalidInputError: another shape or dtype; nothing was written then.
    """
    _require_fit("key_cache", key_cache, "key", key, slots)
    _require_fit("value_cache", value_cache, "value", value, slots)
    _SCATTER_KV_PAIR(key_cache, value_cache, key, value, slots, padded)


def _require_fit(
    cache_name: str, cache: torch.Tensor, name: str, rows: torch.Tensor, slots: torch.Tensor
) -> None:
    require_shape(cache_name, cache, None, None, None, None)
    require_shape(name, rows, None, *cache.shape[2:])
    require_dtype(name, rows, (cache.dtype,))
    require_shape("slots", slots, rows.shape[0])
    require_dtype("slots", slots, INDICES)


_SCATTER_KV = declare(
    __name__,
    "scatter_kv(Tensor(a!) cache, Tensor rows, Tensor slots, bool padded) -> ()",
    npu=("torch_npu", "triton", "torch"),
    fake=lambda *args: None,
)

_SCATTER_KV_PAIR = declare(
    __name__,
    "scatter_kv_pair(Tensor(a!) key_cache, Tensor(b!) value_cache, Tensor key, Tensor value, "
    "Tensor slots, bool padded) -> ()",
    npu=("torch_npu", "triton", "torch"),
    fake=lambda *args: None,
)
