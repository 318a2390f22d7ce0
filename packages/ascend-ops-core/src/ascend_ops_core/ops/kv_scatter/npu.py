"""Writes into a paged cache by torch_npu, and the limits of every NPU implementation.

Not run on hardware; checked against torch_npu's schemas.
"""

from __future__ import annotations

import torch

from ascend_ops_core.devices import DeviceFacts
from ascend_ops_core.support import Support, first_refusal

_SCATTERED = (
    torch.float32,
    torch.float16,
    torch.bool,
    torch.bfloat16,
    torch.int64,
    torch.int8,
)
_CACHED = (
    torch.float16,
    torch.float32,
    torch.bfloat16,
    torch.int8,
    torch.uint8,
    torch.int16,
    torch.uint16,
    torch.int32,
    torch.uint32,
    torch.float8_e5m2,
    torch.float8_e4m3fn,
)
_MOVED = (*_CACHED, torch.bool, torch.int64)


def scatter_kv(cache: torch.Tensor, rows: torch.Tensor, slots: torch.Tensor, padded: bool) -> None:
    """``npu_scatter_nd_update_``; see :func:`ascend_ops_core.ops.kv_scatter.scatter_kv`."""
    torch.ops.npu.npu_scatter_nd_update_(cache.flatten(0, 1), slots[:, None], rows)


def scatter_kv_pair(
    key_cache: torch.Tensor,
    value_cache: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    slots: torch.Tensor,
    padded: bool,
) -> None:
    """``npu_scatter_pa_kv_cache``; see :func:`ascend_ops_core.ops.kv_scatter.scatter_kv_pair`."""
    torch.ops.npu.npu_scatter_pa_kv_cache(
        key, value, key_cache, value_cache, slots, cache_mode="Norm"
    )


def supports_scatter_kv(
    facts: DeviceFacts, cache: torch.Tensor, rows: torch.Tensor, slots: torch.Tensor, padded: bool
) -> Support:
    """No padding, dtypes of torch_npu's documentation, a cache whose slots lie in a row."""
    return first_refusal(
        (not padded, "slots may be negative, npu_scatter_nd_update_ does not check its indices"),
        (
            facts.family in ("A2", "A3"),
            f"device family {facts.family}, npu_scatter_nd_update_ is documented for A2, A3",
        ),
        (
            cache.dtype in _SCATTERED,
            f"cache of {cache.dtype}, npu_scatter_nd_update_ takes float32, float16, bool, "
            "bfloat16, int64, int8",
        ),
        (cache.is_contiguous(), "cache is not contiguous, so its slots are not one axis"),
        (rows.numel() > 0, "no rows"),
    )


def supports_scatter_kv_pair(
    facts: DeviceFacts,
    key_cache: torch.Tensor,
    value_cache: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    slots: torch.Tensor,
    padded: bool,
) -> Support:
    """No padding, one dtype of torch_npu's documentation, everything contiguous."""
    tensors = (key_cache, value_cache, key, value, slots)
    return first_refusal(
        (not padded, "slots may be negative, npu_scatter_pa_kv_cache takes 0 and more"),
        (
            facts.family in ("A2", "A3"),
            f"device family {facts.family}, npu_scatter_pa_kv_cache is documented for A2, A3",
        ),
        (
            key_cache.dtype in _CACHED,
            f"cache of {key_cache.dtype}, npu_scatter_pa_kv_cache takes floats of 8 to 32 bits "
            "and integers of 8 to 32 bits",
        ),
        (
            key_cache.dtype == value_cache.dtype,
            f"caches of {key_cache.dtype} and {value_cache.dtype}, npu_scatter_pa_kv_cache takes "
            "one dtype",
        ),
        (
            key_cache.shape[:3] == value_cache.shape[:3],
            f"caches of {list(key_cache.shape)} and {list(value_cache.shape)}, "
            "npu_scatter_pa_kv_cache takes one number of slots and heads",
        ),
        (
            all(one.is_contiguous() for one in tensors),
            "a tensor is not contiguous, npu_scatter_pa_kv_cache takes contiguous ones",
        ),
        (key.numel() > 0 and value.numel() > 0, "no rows"),
    )


def supports_scatter_kv_triton(
    facts: DeviceFacts, cache: torch.Tensor, rows: torch.Tensor, slots: torch.Tensor, padded: bool
) -> Support:
    """Any dtype that Triton can move; heads without gaps inside."""
    return first_refusal(
        (cache.dtype in _MOVED, f"cache of {cache.dtype}, the kernel does not move it"),
        (
            cache.stride(3) == 1,
            f"cache with stride {cache.stride(3)} inside a head, the kernel writes stride 1",
        ),
    )


def supports_scatter_kv_pair_triton(
    facts: DeviceFacts,
    key_cache: torch.Tensor,
    value_cache: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    slots: torch.Tensor,
    padded: bool,
) -> Support:
    """As for each alone."""
    support = supports_scatter_kv_triton(facts, key_cache, key, slots, padded)
    return support and supports_scatter_kv_triton(facts, value_cache, value, slots, padded)
