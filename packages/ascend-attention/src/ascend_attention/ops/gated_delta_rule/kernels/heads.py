"""Products within chunks whose heads have one decay, in Triton.

Queries and keys go to the matrix unit as they lie in memory, so products of 16-bit rows are exact;
lengths and decays come behind.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from ascend_ops_core.kernels import as_int64
from ascend_ops_core.launch import launch
from ascend_ops_core.tiling import next_power_of_two

from ascend_attention.ops.gated_delta_rule.kernels.rows import lengths_of, raw_rows, strides
from ascend_attention.ops.gated_delta_rule.layout import CHUNK
from ascend_attention.ops.gated_delta_rule.tiles import SMALLEST


@triton.jit
def _keys_of(
    unit,
    key_ptr,
    table_ptr,
    key_token,
    key_head,
    GROUPS: tl.constexpr,
    WIDTH: tl.constexpr,
    PADDED: tl.constexpr,
    CHUNK: tl.constexpr,
):
    """A chunk's first token and its number of them, the key head of a unit, and the keys there."""
    chunk = unit // GROUPS
    group = unit - chunk * GROUPS
    first = as_int64(tl.load(table_ptr + chunk * 2))
    count = tl.load(table_ptr + chunk * 2 + 1)
    at = key_ptr + first * key_token + as_int64(group) * key_head
    return first, count, group, at, raw_rows(at, key_token, count, WIDTH, PADDED, CHUNK)


@triton.jit
def _system_kernel(
    key_ptr,
    sums_ptr,
    beta_ptr,
    table_ptr,
    system_ptr,
    key_token,
    key_head,
    programs,
    HEADS: tl.constexpr,
    SHARED: tl.constexpr,
    WIDTH: tl.constexpr,
    PADDED: tl.constexpr,
    CHUNK: tl.constexpr,
    NORMALIZE: tl.constexpr,
):
    """What keys take back from each other, for the value heads that share a key head."""
    GROUPS: tl.constexpr = HEADS // SHARED
    i = tl.arange(0, CHUNK)
    place = i.to(tl.float32)
    for unit in range(tl.program_id(0), programs, tl.num_programs(0)):
        first, count, group, at, keys = _keys_of(
            unit, key_ptr, table_ptr, key_token, key_head, GROUPS, WIDTH, PADDED, CHUNK
        )
        real = i < count
        found = tl.dot(keys, tl.trans(keys), input_precision="ieee")
        if NORMALIZE:
            length = lengths_of(at, key_token, count, WIDTH, PADDED, CHUNK)
            found = found / length[:, None] / length[None, :]
        for shared in tl.static_range(0, SHARED):
            row = first * HEADS + group * SHARED + shared
            beta = tl.load(beta_ptr + row + i * HEADS, mask=real, other=0.0).to(tl.float32)
            sums = tl.load(sums_ptr + row + i * HEADS, mask=real, other=0.0)
            between = sums[:, None] - sums[None, :]
            between = tl.where(place[:, None] > place[None, :], between, float("-inf"))
            system = found * tl.exp(between) * (beta * -1.0)[:, None]
            to = row * CHUNK + i[:, None] * (HEADS * CHUNK) + i[None, :]
            tl.store(system_ptr + to, system, mask=real[:, None])


@triton.jit
def _inner_kernel(
    query_ptr,
    key_ptr,
    sums_ptr,
    table_ptr,
    inner_ptr,
    scale,
    query_token,
    query_head,
    key_token,
    key_head,
    programs,
    HEADS: tl.constexpr,
    SHARED: tl.constexpr,
    WIDTH: tl.constexpr,
    PADDED: tl.constexpr,
    CHUNK: tl.constexpr,
    NORMALIZE: tl.constexpr,
):
    """Products of queries with the keys that they see, for heads as in :func:`_system_kernel`."""
    GROUPS: tl.constexpr = HEADS // SHARED
    i = tl.arange(0, CHUNK)
    place = i.to(tl.float32)
    for unit in range(tl.program_id(0), programs, tl.num_programs(0)):
        first, count, group, at_key, keys = _keys_of(
            unit, key_ptr, table_ptr, key_token, key_head, GROUPS, WIDTH, PADDED, CHUNK
        )
        real = i < count
        at_query = query_ptr + first * query_token + as_int64(group) * query_head
        queries = raw_rows(at_query, query_token, count, WIDTH, PADDED, CHUNK)
        found = tl.dot(queries, tl.trans(keys), input_precision="ieee") * scale
        if NORMALIZE:
            length = lengths_of(at_query, query_token, count, WIDTH, PADDED, CHUNK)
            found = found / length[:, None]
            length = lengths_of(at_key, key_token, count, WIDTH, PADDED, CHUNK)
            found = found / length[None, :]
        for shared in tl.static_range(0, SHARED):
            row = first * HEADS + group * SHARED + shared
            sums = tl.load(sums_ptr + row + i * HEADS, mask=real, other=0.0)
            between = sums[:, None] - sums[None, :]
            between = tl.where(place[:, None] >= place[None, :], between, float("-inf"))
            to = row * CHUNK + i[:, None] * (HEADS * CHUNK) + i[None, :]
            inner = (found * tl.exp(between)).to(inner_ptr.dtype.element_ty)
            tl.store(inner_ptr + to, inner, mask=real[:, None])


def head_products(
    query: torch.Tensor,
    key: torch.Tensor,
    sums: torch.Tensor,
    beta: torch.Tensor,
    table: torch.Tensor,
    scale: float,
    normalize: bool,
) -> tuple[torch.Tensor, torch.Tensor]:
    """What :func:`..products.products` gives for sums ``[T, H]``."""
    tokens, heads = sums.shape
    groups, width = key.shape[1:]
    system, inner = (
        torch.empty((tokens, heads, CHUNK), dtype=dtype, device=key.device)
        for dtype in (torch.float32, key.dtype)
    )
    programs = table.shape[0] * groups
    shared = {"key_ptr": key, "sums_ptr": sums, "table_ptr": table, "programs": programs}
    shared |= strides(key=key)
    constants = {
        "HEADS": heads,
        "SHARED": heads // groups,
        "WIDTH": width,
        "PADDED": max(next_power_of_two(width), SMALLEST),
        "CHUNK": CHUNK,
        "NORMALIZE": normalize,
    }
    arguments = shared | {"beta_ptr": beta.contiguous(), "system_ptr": system}
    launch(_system_kernel, programs, arguments, constants, cube=True)
    arguments = shared | {"query_ptr": query, "inner_ptr": inner, "scale": float(scale)}
    launch(_inner_kernel, programs, arguments | strides(query=query), constants, cube=True)
    return system, inner
