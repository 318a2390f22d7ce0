"""Writes into caches."""

from __future__ import annotations

import torch

from ascend_ops_core.testing.npu_references.limits import (
    require,
    require_contiguous,
    require_dtype,
    require_rank,
)
from ascend_ops_core.testing.npu_references.registry import reference

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
_INDICES = (torch.int32, torch.int64)


@reference("npu_scatter_nd_update_", documented=("A2", "A3", "310P"))
def npu_scatter_nd_update_(
    self: torch.Tensor, indices: torch.Tensor, updates: torch.Tensor
) -> torch.Tensor:
    """``self[indices[..., 0], indices[..., 1], ...] = updates``, in place.

    Limits: 1 to 8 dimensions; float32, float16, bool, bfloat16, int64, int8 and updates of the same
    dtype; indices int32 or int64 of at least 2 dimensions, whose last one has at most as many
    elements as ``self`` has dimensions. An index out of range, which the NPU does not check, is
    refused here.

    Assumed: if an index is repeated, the last update stays.
    """
    op = "npu_scatter_nd_update_"
    require_dtype(op, "self", self, _SCATTERED)
    require_dtype(op, "updates", updates, (self.dtype,))
    require_dtype(op, "indices", indices, _INDICES)
    require_rank(op, "self", self, 1, 8)
    require(indices.dim() >= 2, op, f"indices of {indices.dim()} dimensions", "at least 2")
    covered = indices.shape[-1]
    require(covered <= self.dim(), op, f"{covered} indices each", f"at most {self.dim()}")
    wanted = (*indices.shape[:-1], *self.shape[covered:])
    require(tuple(updates.shape) == wanted, op, f"updates {list(updates.shape)}", f"{list(wanted)}")
    limits = torch.tensor(self.shape[:covered])
    inside = bool(((indices >= 0) & (indices < limits)).all())
    require(inside, op, "an index out of range", f"indices are within {list(limits.tolist())}")
    rows = updates.reshape(-1, *self.shape[covered:])
    for index, row in zip(indices.reshape(-1, covered).tolist(), rows, strict=True):
        self[tuple(index)] = row
    return self


@reference("npu_scatter_nd_update", documented=("A2", "A3", "310P"))
def npu_scatter_nd_update(
    self: torch.Tensor, indices: torch.Tensor, updates: torch.Tensor
) -> torch.Tensor:
    """:func:`npu_scatter_nd_update_` on a copy."""
    return npu_scatter_nd_update_(self.clone(), indices, updates)


@reference("npu_scatter_pa_kv_cache", documented=("A2", "A3"))
def npu_scatter_pa_kv_cache(
    key: torch.Tensor,
    value: torch.Tensor,
    key_cache: torch.Tensor,
    value_cache: torch.Tensor,
    slot_mapping: torch.Tensor,
    *,
    compress_lens: torch.Tensor | None = None,
    compress_seq_offsets: torch.Tensor | None = None,
    seq_lens: torch.Tensor | None = None,
    cache_mode: str | None = "PA_NZ",
) -> None:
    """Writes token t of key and value [T, heads, size] to slot ``slot_mapping[t]`` of the caches.

    Slot s is row ``s % block_size`` of block ``s // block_size``. With ``cache_mode`` "Norm" or
    None the caches are [blocks, block_size, heads, size]; with "PA_NZ" they are [blocks, heads x
    size // last, block_size, last].

    Limits: everything contiguous; one dtype for keys, values and caches; slots in [0, blocks x
    block_size) and unique, int32 or int64. The form with compression (key of 4 dimensions) is not
    modelled.

    Assumed: ``last`` of "PA_NZ" is whatever the cache's last dimension is.
    """
    op = "npu_scatter_pa_kv_cache"
    require_dtype(op, "key", key, _CACHED)
    tensors = {"value": value, "key_cache": key_cache, "value_cache": value_cache}
    for name, one in tensors.items():
        require_dtype(op, name, one, (key.dtype,))
    require_dtype(op, "slot_mapping", slot_mapping, _INDICES)
    require_contiguous(op, key=key, slot_mapping=slot_mapping, **tensors)
    extras = (compress_lens, compress_seq_offsets, seq_lens)
    require(all(one is None for one in extras), op, "compression arguments", "not modelled")
    require_rank(op, "key", key, 3, 3)
    require_rank(op, "slot_mapping", slot_mapping, 1, 1)
    require(key.shape[:2] == value.shape[:2], op, f"value {list(value.shape)}", "as key but size")
    require(
        slot_mapping.shape[0] == key.shape[0],
        op,
        f"{slot_mapping.shape[0]} slots for {key.shape[0]} tokens",
        "one slot for each token",
    )
    nz = cache_mode == "PA_NZ"
    require(nz or cache_mode in (None, "Norm"), op, f"cache_mode={cache_mode!r}", "'Norm', 'PA_NZ'")
    slots = slot_mapping.long()
    for name, rows, cache in (("key", key, key_cache), ("value", value, value_cache)):
        require_rank(op, f"{name}_cache", cache, 4, 4)
        block = cache.shape[2 if nz else 1]
        count = cache.shape[0] * block
        inside = bool(((slots >= 0) & (slots < count)).all())
        require(inside, op, "a slot out of range", f"slots are in [0, {count})")
        unique = slots.unique().numel() == slots.numel()
        require(unique, op, "a slot is repeated", "slots must be unique")
        size = rows.shape[1] * rows.shape[2]
        if nz:
            fits = cache.shape[1] * cache.shape[3] == size
            require(fits, op, f"{name}_cache {list(cache.shape)}", f"{size} elements a token")
            cache[slots // block, :, slots % block] = rows.view(-1, cache.shape[1], cache.shape[3])
        else:
            fits = cache.shape[2:] == rows.shape[1:]
            require(
                fits, op, f"{name}_cache {list(cache.shape)}", f"{list(rows.shape[1:])} a token"
            )
            cache[slots // block, slots % block] = rows
