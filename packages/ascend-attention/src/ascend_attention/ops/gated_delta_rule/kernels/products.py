"""Sums of decays, and products within chunks decayed by channel, in Triton."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from ascend_ops_core.devices import current_facts
from ascend_ops_core.kernels import as_int64
from ascend_ops_core.launch import launch
from ascend_ops_core.tiling import next_power_of_two

from ascend_attention.ops.gated_delta_rule.kernels.heads import head_products
from ascend_attention.ops.gated_delta_rule.kernels.rows import lengths, load_rows, strides
from ascend_attention.ops.gated_delta_rule.layout import BLOCK, CHUNK
from ascend_attention.ops.gated_delta_rule.tiles import SMALLEST, columns_of_sums


@triton.jit
def _sums_kernel(
    decay_ptr,
    table_ptr,
    sums_ptr,
    columns,
    programs,
    TILES: tl.constexpr,
    CHUNK: tl.constexpr,
    BLOCK: tl.constexpr,
):
    i = tl.arange(0, CHUNK)
    c = tl.arange(0, BLOCK)
    for unit in range(tl.program_id(0), programs, tl.num_programs(0)):
        chunk = unit // TILES
        column = (unit - chunk * TILES) * BLOCK
        first = tl.load(table_ptr + chunk * 2)
        count = tl.load(table_ptr + chunk * 2 + 1)
        mask = (i < count)[:, None] & (c < columns - column)[None, :]
        at = as_int64(first) * columns + column + i[:, None] * columns + c[None, :]
        decay = tl.load(decay_ptr + at, mask=mask, other=0.0)
        tl.store(sums_ptr + at, tl.cumsum(decay, axis=0), mask=mask)


@triton.jit
def _channel_products_kernel(
    query_ptr,
    key_ptr,
    sums_ptr,
    beta_ptr,
    table_ptr,
    system_ptr,
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
    BLOCK: tl.constexpr,
    NORMALIZE: tl.constexpr,
):
    BLOCKS: tl.constexpr = CHUNK // BLOCK
    i = tl.arange(0, CHUNK)
    r = tl.arange(0, BLOCK)
    d = tl.arange(0, PADDED)
    differ = r[:, None] ^ r[None, :]
    # The level at which the middle of a block parts two tokens; 0 where they are one.
    level = tl.where(differ > 0, 1.0, 0.0) + tl.where(differ > 1, 1.0, 0.0)
    level = level + tl.where(differ > 3, 1.0, 0.0) + tl.where(differ > 7, 1.0, 0.0)
    level = tl.where(r[:, None] >= r[None, :], level, -1.0)
    for unit in range(tl.program_id(0), programs, tl.num_programs(0)):
        block = unit // HEADS
        head = unit - block * HEADS
        chunk = block // BLOCKS
        top = (block - chunk * BLOCKS) * BLOCK
        first = as_int64(tl.load(table_ptr + chunk * 2))
        count = tl.load(table_ptr + chunk * 2 + 1)
        left = count - top
        at_key = key_ptr + first * key_token + as_int64(head // SHARED) * key_head
        keys = load_rows(at_key + top * key_token, key_token, left, WIDTH, PADDED, BLOCK)
        keys = keys / lengths(keys, NORMALIZE)[:, None]
        at = query_ptr + (first + top) * query_token + as_int64(head // SHARED) * query_head
        queries = load_rows(at, query_token, left, WIDTH, PADDED, BLOCK)
        queries = queries * (scale / lengths(queries, NORMALIZE))[:, None]
        row = (first + top) * HEADS + head
        beta = tl.load(beta_ptr + row + r * HEADS, mask=r < left, other=0.0).to(tl.float32) * -1.0
        at_sums = sums_ptr + row * WIDTH
        sums = load_rows(at_sums, HEADS * WIDTH, left, WIDTH, PADDED, BLOCK)
        # Tokens of the block, with those before it: the block's first token parts them.
        seen = tl.where(left > 0, top, 0)
        before = load_rows(at_key, key_token, seen, WIDTH, PADDED, CHUNK)
        before = before / lengths(before, NORMALIZE)[:, None]
        at = sums_ptr + (first * HEADS + head) * WIDTH
        earlier = load_rows(at, HEADS * WIDTH, seen, WIDTH, PADDED, CHUNK)
        middle = tl.load(at_sums + d, mask=(d < WIDTH) & (left > 0), other=0.0)[None, :]
        reach = tl.where((i < seen)[:, None], middle - earlier, float("-inf"))
        before = before * tl.exp(reach)
        late = tl.exp(tl.where((r < left)[:, None], sums - middle, 0.0))
        found = tl.dot(queries * late, tl.trans(before), input_precision="ieee")
        to = row * CHUNK + r[:, None] * (HEADS * CHUNK)
        mask = (r < left)[:, None] & (i < seen)[None, :]
        tl.store(inner_ptr + to + i[None, :], found, mask=mask)
        found = tl.dot(keys * late, tl.trans(before), input_precision="ieee")
        tl.store(system_ptr + to + i[None, :], found * beta[:, None], mask=mask)
        # Tokens of the block with each other.
        inner = tl.where(level == 0.0, tl.sum(queries * keys, axis=1)[:, None], 0.0)
        system = tl.zeros((BLOCK, BLOCK), tl.float32)
        for number in tl.static_range(0, 4):
            far = _far(at_sums, HEADS * WIDTH, sums, left, WIDTH, PADDED, BLOCK, 1 << number)
            near = keys * far
            found = tl.dot(queries * far, tl.trans(near), input_precision="ieee")
            inner = tl.where(level == number + 1.0, found, inner)
            found = tl.dot(near, tl.trans(near), input_precision="ieee")
            system = tl.where(level == number + 1.0, found, system)
        to = to + top + r[None, :]
        mask = (r < left)[:, None] & (r < BLOCK)[None, :]
        tl.store(inner_ptr + to, inner, mask=mask)
        tl.store(system_ptr + to, system * beta[:, None], mask=mask)


@triton.jit
def _far(
    at,
    row_stride,
    sums,
    count,
    WIDTH: tl.constexpr,
    PADDED: tl.constexpr,
    ROWS: tl.constexpr,
    HALF: tl.constexpr,
):
    """How far tokens on both sides of a block's middle decay up to it, or from it."""
    BLOCKS: tl.constexpr = ROWS // (2 * HALF)
    b = tl.arange(0, BLOCKS) * (2 * HALF) + HALF
    d = tl.arange(0, PADDED)
    mask = (b < count)[:, None] & (d < WIDTH)[None, :]
    middle = tl.load(at + b[:, None] * row_stride + d[None, :], mask=mask, other=0.0)
    middle = tl.broadcast_to(middle[:, None, :], (BLOCKS, 2 * HALF, PADDED))
    return tl.exp(-tl.abs(sums - tl.reshape(middle, (ROWS, PADDED))))


def products(
    query: torch.Tensor,
    key: torch.Tensor,
    decay: torch.Tensor,
    beta: torch.Tensor,
    table: torch.Tensor,
    scale: float,
    normalize: bool,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Sums of decays, and products of keys and of queries within every chunk.

    Args:
        query: ``[T, G, K]`` without gaps inside a row.
        key: ``[T, G, K]``, the same.
        decay: ``[T, H]`` or ``[T, H, K]`` float32.
        beta: ``[T, H]``.
        table: from :func:`chunk_table`.
        scale: factor on the queries.
        normalize: divide queries and keys by their lengths.

    Returns:
        The sums, like ``decay``, and ``-A`` and ``P`` of :mod:`..chunked`, ``[T, H, CHUNK]``.
        ``P``, in the keys' dtype, is zero above the diagonal. ``A`` is not written there, but for
        blocks on the diagonal, in which it is zero from the diagonal on.
    """
    tokens, heads = decay.shape[:2]
    width, device = key.shape[2], key.device
    columns = decay[0].numel()
    block = columns_of_sums(current_facts(), columns)
    tiles = -(-columns // block)
    sums = torch.empty(decay.shape, dtype=torch.float32, device=device)
    arguments = {
        "decay_ptr": decay.contiguous(),
        "table_ptr": table,
        "sums_ptr": sums,
        "columns": columns,
        "programs": table.shape[0] * tiles,
    }
    constants = {"TILES": tiles, "CHUNK": CHUNK, "BLOCK": block}
    launch(_sums_kernel, table.shape[0] * tiles, arguments, constants)
    if decay.dim() == 2:
        return sums, *head_products(query, key, sums, beta, table, scale, normalize)
    shape = (tokens, heads, CHUNK)
    system = torch.empty(shape, dtype=torch.float32, device=device)
    # The kernel goes block by block and leaves out what lies above the diagonal.
    inner = torch.zeros(shape, dtype=key.dtype, device=device)
    units = table.shape[0] * heads * (CHUNK // BLOCK)
    arguments = {
        "query_ptr": query,
        "key_ptr": key,
        "sums_ptr": sums,
        "beta_ptr": beta.contiguous(),
        "table_ptr": table,
        "system_ptr": system,
        "inner_ptr": inner,
        "scale": float(scale),
        **strides(query=query, key=key),
        "programs": units,
    }
    constants = {
        "HEADS": heads,
        "SHARED": heads // key.shape[1],
        "WIDTH": width,
        "PADDED": max(next_power_of_two(width), SMALLEST),
        "CHUNK": CHUNK,
        "BLOCK": BLOCK,
        "NORMALIZE": normalize,
    }
    launch(_channel_products_kernel, units, arguments, constants, cube=True)
    return sums, system, inner
