"""Paged attention in Triton: a tile of queries over the blocks of its requests, softmax on the way.

- Rows of a tile of queries are heads of one token that share a key head (decode), or tokens of one
  head (prefill); one stride tells them apart.
- Tokens of a tile may belong to several requests. Their contexts follow each other, and a query
  gives no weight to what is another request's.
- With few tiles of queries a context is split between programs, and the parts are merged.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import triton
import triton.language as tl
from ascend_ops_core.devices import current_facts
from ascend_ops_core.kernels import as_int64
from ascend_ops_core.launch import launch

from ascend_attention.ops.attention_states.kernels import merge_into
from ascend_attention.ops.paged_attention.plan import plan

# Below every logit, above -inf, so that differences of peaks are numbers.
LOWEST = tl.constexpr(-3.0e38)
_NO_REQUEST = tl.constexpr(2**31 - 1)


@triton.jit
def _rows(
    cache_ptr,
    table,
    start,
    context,
    key_head,
    over_block,
    over_row,
    over_head,
    WIDTH: tl.constexpr,
    PADDED: tl.constexpr,
    PER_BLOCK: tl.constexpr,
    ROWS: tl.constexpr,
):
    """One head of the rows from ``start`` on, which lie in one block; zeros behind the context."""
    r = tl.arange(0, ROWS)
    d = tl.arange(0, PADDED)
    column = start // PER_BLOCK
    block = as_int64(tl.load(table + column))
    at = cache_ptr + block * over_block + as_int64(start - column * PER_BLOCK) * over_row
    at += as_int64(key_head) * over_head
    inside = (r < context - start)[:, None] & (d < WIDTH)[None, :]
    return tl.load(at + r[:, None] * over_row + d[None, :], mask=inside, other=0.0)


@triton.jit
def attend_tile(query, key, value, seen, scale, peak, total, summed):
    """Add one tile of keys and values to the running softmax of a tile of queries.

    ``seen [queries, rows]`` says what gets weight; ``peak``, ``total`` ``[queries]`` and ``summed``
    ``[queries, width]`` are returned for the next tile.
    """
    logits = tl.dot(query, tl.trans(key), input_precision="ieee") * scale
    logits = tl.where(seen, logits, float("-inf"))
    top = tl.max(logits, axis=1)
    higher = tl.where(top > peak, top, peak)
    weights = tl.exp(logits - higher[:, None])
    factor = tl.exp(peak - higher)
    total = total * factor + tl.sum(weights, axis=1)
    product = tl.dot(weights.to(value.dtype), value, input_precision="ieee")
    return higher, total, summed * factor[:, None] + product


@triton.jit
def _paged_attention_kernel(
    query_ptr,
    keys_ptr,
    values_ptr,
    table_ptr,
    request_ptr,
    position_ptr,
    sinks_ptr,
    out_ptr,
    lse_ptr,
    scale,
    tokens,
    query_token,
    query_head,
    keys_block,
    keys_row,
    keys_head,
    values_block,
    values_row,
    values_head,
    table_stride,
    programs,
    HEADS: tl.constexpr,
    GROUP: tl.constexpr,
    WIDTH: tl.constexpr,
    PADDED: tl.constexpr,
    PER_BLOCK: tl.constexpr,
    WINDOW: tl.constexpr,
    SINKS: tl.constexpr,
    BY_TOKENS: tl.constexpr,
    TAKEN: tl.constexpr,
    ROWS: tl.constexpr,
    SPLITS: tl.constexpr,
):
    TILES: tl.constexpr = (GROUP + TAKEN - 1) // TAKEN
    UNITS: tl.constexpr = HEADS if BY_TOKENS else HEADS // GROUP * TILES
    q = tl.arange(0, TAKEN)
    r = tl.arange(0, ROWS)
    d = tl.arange(0, PADDED)
    for unit in range(tl.program_id(0), programs, tl.num_programs(0)):
        tile = unit // SPLITS
        split = unit - tile * SPLITS
        if BY_TOKENS:
            token = tile // UNITS * TAKEN
            head = tile % UNITS
            key_head = head // GROUP
            real = q < tokens - token
            query_step = query_token
            out_step = HEADS
            position = tl.load(position_ptr + token + q, mask=real, other=-1).to(tl.int32)
            owner = tl.load(request_ptr + token + q, mask=real, other=0).to(tl.int32)
            first = tl.min(tl.where(position >= 0, owner, _NO_REQUEST), axis=0)
            last = tl.max(tl.where(position >= 0, owner, -1), axis=0)
        else:
            token = tile // UNITS
            part = tile % UNITS
            key_head = part // TILES
            taken = (part - key_head * TILES) * TAKEN
            head = key_head * GROUP + taken
            real = q < GROUP - taken
            query_step = query_head
            out_step = 1
            first = tl.load(request_ptr + token).to(tl.int32)
            last = first
            place = tl.load(position_ptr + token).to(tl.int32)
            position = tl.zeros((TAKEN,), tl.int32) + place
            owner = tl.zeros((TAKEN,), tl.int32) + first
        mask = real[:, None] & (d < WIDTH)[None, :]
        at = query_ptr + as_int64(token) * query_token + as_int64(head) * query_head
        query = tl.load(at + q[:, None] * query_step + d[None, :], mask=mask, other=0.0)
        peak = tl.full((TAKEN,), LOWEST, tl.float32)
        total = tl.zeros((TAKEN,), tl.float32)
        if SINKS:
            if BY_TOKENS:
                sink = tl.zeros((TAKEN,), tl.float32) + tl.load(sinks_ptr + head).to(tl.float32)
            else:
                sink = tl.load(sinks_ptr + head + q, mask=real, other=0.0).to(tl.float32)
            # One part of a split context counts it.
            peak = tl.where(split == 0, sink, peak)
            total = tl.where(split == 0, total + 1.0, total)
        summed = tl.zeros((TAKEN, PADDED), tl.float32)
        for request in range(first, last + 1):
            if BY_TOKENS:
                own = (owner == request) & (position >= 0)
                context = tl.max(tl.where(own, position, -1), axis=0) + 1
                earliest = tl.min(tl.where(own, position, _NO_REQUEST), axis=0)
            else:
                own = real
                context = place + 1
                earliest = place
            # Padding has a negative position, and so no tile.
            tiles = (tl.where(context > 0, context, 0) + ROWS - 1) // ROWS
            before = 0
            if WINDOW > 0:
                unseen = earliest + 1 - WINDOW
                before = tl.where((unseen > 0) & (context > 0), unseen, 0) // ROWS
            share = (tiles - before + SPLITS - 1) // SPLITS
            start_at = before + split * share
            end_at = start_at + share
            end_at = tl.where(end_at < tiles, end_at, tiles)
            table = table_ptr + as_int64(request) * table_stride
            for start in range(start_at * ROWS, end_at * ROWS, ROWS):
                key = _rows(
                    keys_ptr, table, start, context, key_head, keys_block, keys_row, keys_head,
                    WIDTH, PADDED, PER_BLOCK, ROWS,
                )  # fmt: skip
                value = _rows(
                    values_ptr, table, start, context, key_head, values_block, values_row,
                    values_head, WIDTH, PADDED, PER_BLOCK, ROWS,
                )  # fmt: skip
                seen = (start + r)[None, :] <= position[:, None]
                if WINDOW > 0:
                    seen = seen & ((start + r)[None, :] > position[:, None] - WINDOW)
                seen = seen & own[:, None]
                peak, total, summed = attend_tile(
                    query, key, value, seen, scale, peak, total, summed
                )
        some = (total > 0.0) & (position >= 0)
        result = summed * (1.0 / tl.where(some, total, 1.0))[:, None]
        to = (as_int64(split) * tokens + token) * HEADS + head
        out = out_ptr + to * WIDTH + q[:, None] * (out_step * WIDTH) + d[None, :]
        tl.store(out, result.to(out_ptr.dtype.element_ty), mask=mask)
        lse = tl.where(some, peak + tl.log(tl.where(some, total, 1.0)), float("-inf"))
        tl.store(lse_ptr + to + q * out_step, lse, mask=real)


def paged_attention(
    query: torch.Tensor,
    key_cache: torch.Tensor,
    value_cache: torch.Tensor,
    block_table: torch.Tensor,
    request: torch.Tensor,
    position: torch.Tensor,
    sinks: torch.Tensor | None,
    scale: float,
    window: int,
    query_ends: Sequence[int],
    seq_lens: Sequence[int],
) -> tuple[torch.Tensor, torch.Tensor]:
    """See :func:`ascend_attention.ops.paged_attention.paged_attention`; 0 is no window."""
    query = query if query.stride(2) == 1 else query.contiguous()
    tokens, heads, width = query.shape
    per_block, key_heads = key_cache.shape[1:3]
    cut = plan(
        current_facts(),
        tokens=tokens,
        requests=block_table.shape[0],
        heads=heads,
        key_heads=key_heads,
        width=width,
        columns=block_table.shape[1],
        per_block=per_block,
        window=window,
        itemsize=key_cache.element_size(),
    )
    device = query.device
    out = torch.empty((tokens, heads, width), dtype=query.dtype, device=device)
    part = out
    if cut.splits > 1:
        part = torch.empty((cut.splits, tokens, heads, width), dtype=torch.float32, device=device)
    lse = torch.empty((cut.splits, tokens, heads), dtype=torch.float32, device=device)
    arguments = {
        "query_ptr": query,
        "keys_ptr": key_cache,
        "values_ptr": value_cache,
        "table_ptr": block_table,
        "request_ptr": request.contiguous(),
        "position_ptr": position.contiguous(),
        # Without sinks nothing is read from it.
        "sinks_ptr": lse if sinks is None else sinks.contiguous(),
        "out_ptr": part,
        "lse_ptr": lse,
        "scale": float(scale),
        "tokens": tokens,
        "query_token": query.stride(0),
        "query_head": query.stride(1),
        "keys_block": key_cache.stride(0),
        "keys_row": key_cache.stride(1),
        "keys_head": key_cache.stride(2),
        "values_block": value_cache.stride(0),
        "values_row": value_cache.stride(1),
        "values_head": value_cache.stride(2),
        "table_stride": block_table.stride(0),
        "programs": cut.programs,
    }
    constants = {
        "HEADS": heads,
        "GROUP": heads // key_heads,
        "WIDTH": width,
        "PADDED": cut.padded,
        "PER_BLOCK": per_block,
        "WINDOW": window,
        "SINKS": sinks is not None,
        "BY_TOKENS": cut.by_tokens,
        "TAKEN": cut.taken,
        "ROWS": cut.rows,
        "SPLITS": cut.splits,
    }
    launch(_paged_attention_kernel, cut.programs, arguments, constants, cube=True)
    if cut.splits > 1:
        return out, merge_into(part, lse, out)
    return out, lse[0]
