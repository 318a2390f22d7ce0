"""The lightning indexer in Triton.

Scores: a unit of work is a few consecutive tokens and a run of pieces of pages. The heads of its
tokens are the rows of one product, so that keys are loaded once for all tokens of a request; where
requests change inside a unit, each has its turn over all rows and stores those that are its own.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from ascend_ops_core.devices import current_facts
from ascend_ops_core.kernels import as_int64
from ascend_ops_core.launch import launch
from ascend_ops_core.ops.quantization.formats import LARGEST, SMALLEST_SCALE
from ascend_ops_core.ops.quantization.kernels import (
    e4m3_bits,
    magnitude,
    rounded_to_int8,
)
from ascend_ops_core.tiling import block_of, next_power_of_two

from ascend_attention.ops.indexer.selection import (
    best_entries,
    entries_in_order,
    tokens_at_once,
)

# The smallest sides of a product: rows as the matrix unit takes them; with fewer than 64 summed
# float8 values the compiler for A5 crashes.
_FEWEST_ROWS = 16
_FEWEST_SUMMED = 64

# Bytes per dot product: it arrives from the matrix unit, and becomes a weighted rectified one.
_DOT_BYTES = 4
_LIVE_BYTES = 8

# Bytes per value of a quantised row: float32 copies, quotient and integer steps to eight bits.
_QUANTIZED_BYTES = 40

# Units of work per matrix core, so that a core with short requests takes more of them.
_UNITS_PER_CORE = 4


@triton.jit
def _scores_kernel(
    query_ptr,
    weight_ptr,
    key_ptr,
    scale_ptr,
    table_ptr,
    request_ptr,
    visible_ptr,
    out_ptr,
    tokens,
    width,
    pieces,
    pieces_per_unit,
    runs,
    table_stride,
    key_block_stride,
    key_row_stride,
    scale_block_stride,
    programs,
    TOKENS: tl.constexpr,
    HEADS: tl.constexpr,
    ROWS: tl.constexpr,
    DIM: tl.constexpr,
    PADDED: tl.constexpr,
    PAGE: tl.constexpr,
    BLOCK: tl.constexpr,
    SCALED: tl.constexpr,
    FP8: tl.constexpr,
):
    per_page: tl.constexpr = (PAGE + BLOCK - 1) // BLOCK
    for unit in range(tl.program_id(0), programs, tl.num_programs(0)):
        tile = unit // runs
        first_piece = (unit - tile * runs) * pieces_per_unit
        last_piece = first_piece + pieces_per_unit
        last_piece = tl.where(last_piece < pieces, last_piece, pieces)
        first = tile * TOKENS
        left = tokens - first
        t = tl.arange(0, TOKENS)
        h = tl.arange(0, TOKENS * ROWS)
        d = tl.arange(0, PADDED)
        k = tl.arange(0, BLOCK)
        heads = tl.where(left < TOKENS, left, TOKENS) * HEADS
        start = as_int64(first) * HEADS
        query = tl.load(
            query_ptr + start * DIM + h[:, None] * DIM + d[None, :],
            mask=(h < heads)[:, None] & (d < DIM)[None, :],
            other=0,
        )
        if FP8:
            query = query.to(tl.float8e4nv, bitcast=True)
        weight = tl.load(weight_ptr + start + h, mask=h < heads, other=0.0)
        if TOKENS > 1:
            seen = tl.load(visible_ptr + first + t, mask=t < left, other=0).to(tl.int32)
            owner = tl.load(request_ptr + first + t, mask=t < left, other=0).to(tl.int32)
        done = 0
        for _ in range(TOKENS):
            # The turn of one request: tokens `done` to `end`. Turns that are left over are empty.
            at = tl.where(done < left, first + done, tokens - 1)
            request = tl.load(request_ptr + at).to(tl.int32)
            if TOKENS > 1:
                mine = (owner == request) & (t >= done) & (t < left)
                end = done + tl.sum(tl.where(mine, 1, 0), axis=0)
                most = tl.max(tl.where(mine, seen, 0), axis=0)
                stop = tl.where(end > done, last_piece, first_piece)
            else:
                end = 1
                most = tl.load(visible_ptr + at).to(tl.int32)
                stop = last_piece
            # Pieces in front of `live` hold entries that one of the tokens sees.
            most = tl.where(most > 0, most, 0)
            live = (most // PAGE) * per_page + (most % PAGE + BLOCK - 1) // BLOCK
            live = tl.where(live < stop, live, stop)
            live = tl.where(live > first_piece, live, first_piece)
            for piece in range(first_piece, live):
                page = piece // per_page
                row = (piece - page * per_page) * BLOCK
                entry = page * PAGE + row
                count = tl.where(PAGE - row < most - entry, PAGE - row, most - entry)
                block = tl.load(table_ptr + as_int64(request) * table_stride + page).to(tl.int32)
                at_key = key_ptr + as_int64(block) * key_block_stride + row * key_row_stride
                keys = tl.load(
                    at_key + k[:, None] * key_row_stride + d[None, :],
                    mask=(k < count)[:, None] & (d < DIM)[None, :],
                    other=0,
                )
                if FP8:
                    keys = keys.to(tl.float8e4nv, bitcast=True)
                dots = tl.dot(query, tl.trans(keys), input_precision="ieee").to(tl.float32)
                dots = tl.where(dots < 0.0, 0.0, dots) * weight[:, None]
                if TOKENS > 1:
                    score = tl.sum(tl.reshape(dots, (TOKENS, ROWS, BLOCK)), axis=1)
                else:
                    score = tl.sum(dots, axis=0)[None, :]
                if SCALED:
                    at_scale = scale_ptr + as_int64(block) * scale_block_stride + row
                    scale = tl.load(at_scale + k, mask=k < count, other=0.0)
                    score = score * scale.to(tl.float32)[None, :]
                if TOKENS > 1:
                    score = tl.where((entry + k)[None, :] < seen[:, None], score, float("-inf"))
                else:
                    score = tl.where((k < count)[None, :], score, float("-inf"))
                inside = tl.where(PAGE - row < width - entry, PAGE - row, width - entry)
                tl.store(
                    out_ptr + as_int64(first) * width + entry + t[:, None] * width + k[None, :],
                    score,
                    mask=((t >= done) & (t < end))[:, None] & (k < inside)[None, :],
                )
            for piece in range(live, stop):
                page = piece // per_page
                row = (piece - page * per_page) * BLOCK
                entry = page * PAGE + row
                inside = tl.where(PAGE - row < width - entry, PAGE - row, width - entry)
                tl.store(
                    out_ptr + as_int64(first) * width + entry + t[:, None] * width + k[None, :],
                    tl.full((TOKENS, BLOCK), float("-inf"), tl.float32),
                    mask=((t >= done) & (t < end))[:, None] & (k < inside)[None, :],
                )
            done = end


@triton.jit
def _quantize_kernel(
    rows_ptr,
    block_ptr,
    offset_ptr,
    key_ptr,
    scale_ptr,
    row_stride,
    key_block_stride,
    key_row_stride,
    scale_block_stride,
    scale_row_stride,
    programs,
    WIDTH: tl.constexpr,
    BLOCK: tl.constexpr,
    LARGEST: tl.constexpr,
    SMALLEST: tl.constexpr,
    FP8: tl.constexpr,
):
    columns = tl.arange(0, BLOCK)
    inside = columns < WIDTH
    for unit in range(tl.program_id(0), programs, tl.num_programs(0)):
        block = tl.load(block_ptr + unit).to(tl.int32)
        offset = tl.load(offset_ptr + unit).to(tl.int32)
        if block >= 0:
            row = rows_ptr + as_int64(unit) * row_stride
            x = tl.load(row + columns, mask=inside, other=0.0).to(tl.float32)
            scale = tl.max(magnitude(x), axis=0) / LARGEST
            q = x / tl.where(scale >= SMALLEST, scale, 1.0)
            q = tl.where(q == q, q, 0.0)
            out = key_ptr + as_int64(block) * key_block_stride + as_int64(offset) * key_row_stride
            if FP8:
                tl.store(out + columns, e4m3_bits(q), mask=inside)
            else:
                tl.store(out + columns, rounded_to_int8(q), mask=inside)
            to = scale_ptr + as_int64(block) * scale_block_stride
            to += as_int64(offset) * scale_row_stride
            tl.store(to, scale.to(scale_ptr.dtype.element_ty))


def indexer_scores(
    query: torch.Tensor,
    head_weights: torch.Tensor,
    key_cache: torch.Tensor,
    key_scale: torch.Tensor | None,
    block_table: torch.Tensor,
    request: torch.Tensor,
    visible: torch.Tensor,
    width: int,
) -> torch.Tensor:
    """See :func:`ascend_attention.ops.indexer.indexer_scores`."""
    tokens, heads, dim = query.shape
    page = key_cache.shape[1]
    out = torch.empty((tokens, width), dtype=torch.float32, device=query.device)
    if not width:
        return out
    facts = current_facts()
    rows = max(next_power_of_two(heads), _FEWEST_ROWS)
    tile = block_of(facts, streamed=_DOT_BYTES, local=_LIVE_BYTES, minimum=rows * _FEWEST_ROWS)
    block = min(max(next_power_of_two(page), _FEWEST_ROWS), tile // rows)
    together = 1
    if heads == rows and block_table.shape[0]:
        # Requests of fewer tokens on average would take turns over rows that are not theirs.
        together = min(tile // (rows * block), next_power_of_two(tokens // block_table.shape[0]))
    pieces = -(-width // page) * -(-page // block)
    tiles = -(-tokens // together)
    runs = min(pieces, -(-_UNITS_PER_CORE * facts.cube_cores // max(tiles, 1)))
    pieces_per_unit = -(-pieces // runs)
    runs = -(-pieces // pieces_per_unit)
    programs = tiles * runs
    # A constant of an 8-bit float, such as what a masked load fills in, crashes the compiler.
    fp8 = key_cache.dtype == torch.float8_e4m3fn
    query = query.contiguous()
    arguments = {
        "query_ptr": query.view(torch.uint8) if fp8 else query,
        "weight_ptr": head_weights.contiguous(),
        "key_ptr": key_cache.view(torch.uint8) if fp8 else key_cache,
        "scale_ptr": key_scale,
        "table_ptr": block_table,
        "request_ptr": request.contiguous(),
        "visible_ptr": visible.contiguous(),
        "out_ptr": out,
        "tokens": tokens,
        "width": width,
        "pieces": pieces,
        "pieces_per_unit": pieces_per_unit,
        "runs": runs,
        "table_stride": block_table.stride(0),
        "key_block_stride": key_cache.stride(0),
        "key_row_stride": key_cache.stride(1),
        "scale_block_stride": 0 if key_scale is None else key_scale.stride(0),
        "programs": programs,
    }
    constants = {
        "TOKENS": together,
        "HEADS": heads,
        "ROWS": rows,
        "DIM": dim,
        "PADDED": max(next_power_of_two(dim), _FEWEST_SUMMED),
        "PAGE": page,
        "BLOCK": block,
        "SCALED": key_scale is not None,
        "FP8": fp8,
    }
    launch(_scores_kernel, programs, arguments, constants, cube=True)
    return out


def select_entries(
    query: torch.Tensor,
    head_weights: torch.Tensor,
    key_cache: torch.Tensor,
    key_scale: torch.Tensor | None,
    block_table: torch.Tensor,
    request: torch.Tensor,
    visible: torch.Tensor,
    top_k: int,
    most_entries: int,
) -> torch.Tensor:
    """See :func:`ascend_attention.ops.indexer.select_entries`: these scores, and torch's top-k.

    torch.topk stays on the device; a selection in Triton would need a prefix sum over whole rows,
    which the compiler turns into scalar loops.
    """
    chosen = entries_in_order(visible, top_k)
    if most_entries > top_k:
        tile = tokens_at_once(most_entries)
        for start in range(0, query.shape[0], tile):
            part = slice(start, start + tile)
            scores = indexer_scores(
                query[part],
                head_weights[part],
                key_cache,
                key_scale,
                block_table,
                request[part],
                visible[part],
                most_entries,
            )
            chosen[part] = best_entries(scores, visible[part], top_k)
    return chosen


def quantize_index_rows(
    key_cache: torch.Tensor,
    scale_cache: torch.Tensor,
    rows: torch.Tensor,
    block: torch.Tensor,
    offset: torch.Tensor,
) -> None:
    """See :func:`ascend_attention.ops.indexer.quantize_index_rows`."""
    count, width = rows.shape
    rows = rows if rows.stride(1) == 1 else rows.contiguous()
    fp8 = key_cache.dtype == torch.float8_e4m3fn
    padded = block_of(
        current_facts(),
        streamed=rows.element_size() + 1,
        local=_QUANTIZED_BYTES,
        minimum=max(next_power_of_two(width), 32),
        maximum=max(next_power_of_two(width), 32),
    )
    arguments = {
        "rows_ptr": rows,
        "block_ptr": block.contiguous(),
        "offset_ptr": offset.contiguous(),
        "key_ptr": key_cache.view(torch.uint8) if fp8 else key_cache,
        "scale_ptr": scale_cache,
        "row_stride": rows.stride(0),
        "key_block_stride": key_cache.stride(0),
        "key_row_stride": key_cache.stride(1),
        "scale_block_stride": scale_cache.stride(0),
        "scale_row_stride": scale_cache.stride(1),
        "programs": count,
    }
    constants = {
        "WIDTH": width,
        "BLOCK": padded,
        "LARGEST": LARGEST[key_cache.dtype],
        "SMALLEST": SMALLEST_SCALE,
        "FP8": fp8,
    }
    launch(_quantize_kernel, count, arguments, constants)
