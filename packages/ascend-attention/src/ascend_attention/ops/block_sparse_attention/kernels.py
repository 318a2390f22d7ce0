"""Block-sparse attention in Triton, for prefill and decode alike.

A unit of work is a tile of the query heads that share one selection, and a part of its blocks. Only
where a step has too few of them for the cores are the blocks of a query split between units, whose
results are merged by their logarithms. One pass with a running softmax reads every block once: with
a few heads a block's keys are more to read again than the sums are to rescale.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from ascend_ops_core.devices import current_facts
from ascend_ops_core.kernels import as_int64
from ascend_ops_core.launch import launch

from ascend_attention.ops.attention_states.kernels import merge_into
from ascend_attention.ops.sparse_attention.plan import plan

# Below every logit, above -inf, so that differences of peaks are numbers.
_LOWEST = tl.constexpr(-3.0e38)


@triton.jit
def _rows(at, row_stride, count, WIDTH: tl.constexpr, PADDED: tl.constexpr, ROWS: tl.constexpr):
    """``[ROWS, PADDED]``; zeros behind ``count``, since no weight is zero enough for NaN."""
    r = tl.arange(0, ROWS)
    d = tl.arange(0, PADDED)
    mask = (r < count)[:, None] & (d < WIDTH)[None, :]
    return tl.load(at + r[:, None] * row_stride + d[None, :], mask=mask, other=0.0)


@triton.jit
def _block_sparse_attention_kernel(
    query_ptr,
    key_ptr,
    value_ptr,
    selected_ptr,
    table_ptr,
    request_ptr,
    position_ptr,
    out_ptr,
    lse_ptr,
    scale,
    tokens,
    places,
    query_token,
    query_head,
    key_block,
    key_row,
    key_head,
    value_block,
    value_row,
    value_head,
    table_stride,
    programs,
    GROUPS: tl.constexpr,
    SHARED: tl.constexpr,
    WIDTH: tl.constexpr,
    PADDED: tl.constexpr,
    PAGE: tl.constexpr,
    TAKEN: tl.constexpr,
    ROWS: tl.constexpr,
    SPLITS: tl.constexpr,
):
    HEAD_TILES: tl.constexpr = (SHARED + TAKEN - 1) // TAKEN
    PIECES: tl.constexpr = PAGE // ROWS
    h = tl.arange(0, TAKEN)
    d = tl.arange(0, PADDED)
    row_number = tl.arange(0, ROWS).to(tl.float32)
    for unit in range(tl.program_id(0), programs, tl.num_programs(0)):
        pair = unit // SPLITS
        split = unit - pair * SPLITS
        at_group = pair // HEAD_TILES
        inside = (pair - at_group * HEAD_TILES) * TAKEN
        token = at_group // GROUPS
        group = at_group - token * GROUPS
        head = group * SHARED + inside
        real = h < SHARED - inside
        mask = real[:, None] & (d < WIDTH)[None, :]
        at = query_ptr + as_int64(token) * query_token + as_int64(head) * query_head
        query = tl.load(at + h[:, None] * query_head + d[None, :], mask=mask, other=0.0)
        request = tl.load(request_ptr + token).to(tl.int32)
        context = tl.load(position_ptr + token).to(tl.int32) + 1
        selected = selected_ptr + as_int64(at_group) * places
        # A query selects no more blocks than it sees. Where the first -1 ends the selection before,
        # the rest adds nothing: a vector core that counted would have to hand the number over to
        # the matrix core.
        used = (context + PAGE - 1) // PAGE
        used = tl.where(used < places, used, places)
        used = tl.where(context > 0, used, 0) * PIECES
        share = (used + SPLITS - 1) // SPLITS
        first = split * share
        last = tl.where(first + share < used, first + share, used)
        table = table_ptr + as_int64(request) * table_stride
        peak = tl.full((TAKEN,), _LOWEST, tl.float32)
        total = tl.zeros((TAKEN,), tl.float32)
        summed = tl.zeros((TAKEN, PADDED), tl.float32)
        going = 1
        if SPLITS > 1:
            for place in range(0, first // PIECES):
                going = tl.where(tl.load(selected + place) < 0, 0, going)
        for piece in range(first, last):
            number = tl.load(selected + piece // PIECES)
            going = tl.where(number < 0, 0, going)
            number = tl.where(going > 0, number, 0)
            row = (piece % PIECES) * ROWS
            block = as_int64(tl.load(table + number))
            left = tl.where(going > 0, context - number * PAGE - row, 0)
            at = key_ptr + block * key_block + row * key_row + group * key_head
            keys = _rows(at, key_row, left, WIDTH, PADDED, ROWS)
            at = value_ptr + block * value_block + row * value_row + group * value_head
            values = _rows(at, value_row, left, WIDTH, PADDED, ROWS)
            # One row of addends: vector cores compare floats, and integers in eight steps.
            hidden = tl.where(row_number < left.to(tl.float32), 0.0, float("-inf"))
            logits = tl.dot(query, tl.trans(keys), input_precision="ieee") * scale
            logits += hidden[None, :]
            top = tl.max(logits, axis=1)
            higher = tl.where(top > peak, top, peak)
            weights = tl.exp(logits - higher[:, None])
            factor = tl.exp(peak - higher)
            total = total * factor + tl.sum(weights, axis=1)
            added = tl.dot(weights.to(values.dtype), values, input_precision="ieee")
            summed = summed * factor[:, None] + added
            peak = higher
        some = total > 0.0
        total = tl.where(some, total, 1.0)
        summed = summed * (1.0 / total)[:, None]
        to = (as_int64(split) * tokens + token) * GROUPS * SHARED + head
        out = out_ptr + to * WIDTH + h[:, None] * WIDTH + d[None, :]
        tl.store(out, summed.to(out_ptr.dtype.element_ty), mask=mask)
        lse = tl.where(some, peak + tl.log(total), float("-inf"))
        tl.store(lse_ptr + to + h, lse, mask=real)


def block_sparse_attention(
    query: torch.Tensor,
    key_cache: torch.Tensor,
    value_cache: torch.Tensor,
    selected: torch.Tensor,
    block_table: torch.Tensor,
    request: torch.Tensor,
    position: torch.Tensor,
    scale: float,
) -> tuple[torch.Tensor, torch.Tensor]:
    """See :func:`ascend_attention.ops.block_sparse_attention.block_sparse_attention`."""
    query = query if query.stride(2) == 1 else query.contiguous()
    tokens, heads, width = query.shape
    page, groups = key_cache.shape[1:3]
    places, shared, device = selected.shape[2], heads // groups, query.device
    out = torch.empty((tokens, heads, width), dtype=query.dtype, device=device)
    if not places or not block_table.numel() or not heads:
        return out.zero_(), torch.full((tokens, heads), float("-inf"), device=device)
    facts = current_facts()
    cut = plan(facts, tokens * groups, shared, width, [places * page], query.element_size())
    # A tile lies in one block, whose rows are a multiple of 16.
    rows = min(cut.rows, page & -page)
    splits = min(cut.splits, places)
    part = out
    if splits > 1:
        part = torch.empty((splits, tokens, heads, width), dtype=torch.float32, device=device)
    lse = torch.empty((splits, tokens, heads), dtype=torch.float32, device=device)
    programs = tokens * groups * -(-shared // cut.heads) * splits
    arguments = {
        "query_ptr": query,
        "key_ptr": key_cache,
        "value_ptr": value_cache,
        "selected_ptr": selected.contiguous(),
        "table_ptr": block_table,
        # Padding may name any request, and reads nothing of it.
        "request_ptr": torch.where(position >= 0, request, 0),
        "position_ptr": position.contiguous(),
        "out_ptr": part,
        "lse_ptr": lse,
        "scale": float(scale),
        "tokens": tokens,
        "places": places,
        "query_token": query.stride(0),
        "query_head": query.stride(1),
        "key_block": key_cache.stride(0),
        "key_row": key_cache.stride(1),
        "key_head": key_cache.stride(2),
        "value_block": value_cache.stride(0),
        "value_row": value_cache.stride(1),
        "value_head": value_cache.stride(2),
        "table_stride": block_table.stride(0),
        "programs": programs,
    }
    constants = {
        "GROUPS": groups,
        "SHARED": shared,
        "WIDTH": width,
        "PADDED": cut.padded,
        "PAGE": page,
        "TAKEN": cut.heads,
        "ROWS": rows,
        "SPLITS": splits,
    }
    launch(_block_sparse_attention_kernel, programs, arguments, constants, cube=True)
    if splits > 1:
        return out, merge_into(part, lse, out)
    return out, lse[0]
