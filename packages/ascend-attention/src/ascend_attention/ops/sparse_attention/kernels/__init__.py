"""Sparse attention in Triton: gather, attend, and merge where the rows were split.

DeepSeek-V4's rows are wide (512) and shared by all heads, which decides the form:

- The rows of each token are gathered once into contiguous memory, so that the matrix unit reads
  whole tiles; every tile of heads reads them again, from the L2 cache. Packed rows are unpacked on
  the way. What is no row becomes zeros with a bias of -inf and is read nowhere. Tiles in front of a
  token's first row and behind its last are neither gathered nor attended to: a window is filled
  from its end and entries from their start, so a short request in a batch with a long one costs
  what it has.
- The softmax is online over tiles of rows, in a first pass that keeps peak and sum alone. A second
  pass computes the logits again and sums the weighted rows, which then stay in the accumulator of
  the matrix unit. Rescaling them in every tile, as a single pass must, would move and multiply 512
  values per head where the second product computes one per row; the vector unit would be the limit.
- With few tokens the rows are split between programs (see ``plan``). Each writes its peak, sum and
  unscaled result, and a kernel of its own merges them.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from ascend_ops_core.devices import current_facts
from ascend_ops_core.kernels import as_int64
from ascend_ops_core.launch import launch
from ascend_ops_core.tiling import tile_rows

from ascend_attention.ops.sparse_attention.kernels.gathering import gather
from ascend_attention.ops.sparse_attention.plan import Plan, plan

# Below every logit, above -inf, so that differences of peaks are numbers.
_LOWEST = tl.constexpr(-3.0e38)


@triton.jit
def _logits(query, tile, bias, scale):
    """``[heads, rows]`` float32, -inf where the bias says that there is no row."""
    product = tl.dot(query, tl.trans(tile), input_precision="ieee")
    return product * scale + bias[None, :]


@triton.jit
def _attend_kernel(
    query_ptr,
    rows_ptr,
    bias_ptr,
    span_ptr,
    sinks_ptr,
    out_ptr,
    peak_ptr,
    total_ptr,
    scale,
    columns,
    token_stride,
    head_stride,
    programs,
    HEADS: tl.constexpr,
    WIDTH: tl.constexpr,
    PADDED: tl.constexpr,
    TAKEN: tl.constexpr,
    ROWS: tl.constexpr,
    SPLITS: tl.constexpr,
):
    HEAD_TILES: tl.constexpr = (HEADS + TAKEN - 1) // TAKEN
    h = tl.arange(0, TAKEN)
    d = tl.arange(0, PADDED)
    r = tl.arange(0, ROWS)
    for unit in range(tl.program_id(0), programs, tl.num_programs(0)):
        pair = unit // SPLITS
        split = unit - pair * SPLITS
        token = pair // HEAD_TILES
        head = (pair - token * HEAD_TILES) * TAKEN
        real = h < HEADS - head
        mask = real[:, None] & (d < WIDTH)[None, :]
        at = query_ptr + as_int64(token) * token_stride + as_int64(head) * head_stride
        query = tl.load(at + h[:, None] * head_stride + d[None, :], mask=mask, other=0.0)
        sink = tl.load(sinks_ptr + head + h, mask=real, other=0.0)
        used = tl.load(span_ptr + 2 * token + 1)
        share = (used + SPLITS - 1) // SPLITS
        behind = tl.where((split + 1) * share < used, (split + 1) * share, used)
        origin = tl.load(span_ptr + 2 * token)
        first = (origin + split * share) * ROWS
        last = (origin + behind) * ROWS
        bias_row = bias_ptr + as_int64(token) * columns + r
        row = rows_ptr + as_int64(token) * columns * PADDED + r[:, None] * PADDED + d[None, :]
        # Starting at the sink, a head without any row sums to its share and no peak is missing.
        peak = tl.where(sink > _LOWEST, sink, _LOWEST)
        total = tl.zeros((TAKEN,), tl.float32)
        if SPLITS == 1:
            total = tl.exp(sink - peak)
        for start in range(first, last, ROWS):
            tile = tl.load(row + as_int64(start) * PADDED)
            logits = _logits(query, tile, tl.load(bias_row + start), scale)
            top = tl.max(logits, axis=1)
            higher = tl.where(top > peak, top, peak)
            total = total * tl.exp(peak - higher)
            total += tl.sum(tl.exp(logits - higher[:, None]), axis=1)
            peak = higher
        factor = tl.full((TAKEN,), 1.0, tl.float32)
        if SPLITS == 1:
            factor = 1.0 / total
        summed = tl.zeros((TAKEN, PADDED), tl.float32)
        for start in range(first, last, ROWS):
            tile = tl.load(row + as_int64(start) * PADDED)
            logits = _logits(query, tile, tl.load(bias_row + start), scale)
            weights = tl.exp(logits - peak[:, None]) * factor[:, None]
            summed = tl.dot(weights.to(tile.dtype), tile, summed, input_precision="ieee")
        to = (as_int64(token) * SPLITS + split) * HEADS + head
        out = out_ptr + to * WIDTH + h[:, None] * WIDTH + d[None, :]
        tl.store(out, summed.to(out_ptr.dtype.element_ty), mask=mask)
        if SPLITS > 1:
            tl.store(peak_ptr + to + h, peak, mask=real)
            tl.store(total_ptr + to + h, total, mask=real)


@triton.jit
def _merge_kernel(
    part_ptr,
    peak_ptr,
    total_ptr,
    sinks_ptr,
    out_ptr,
    programs,
    HEADS: tl.constexpr,
    WIDTH: tl.constexpr,
    PADDED: tl.constexpr,
    TAKEN: tl.constexpr,
    SPLITS: tl.constexpr,
):
    HEAD_TILES: tl.constexpr = (HEADS + TAKEN - 1) // TAKEN
    h = tl.arange(0, TAKEN)
    d = tl.arange(0, PADDED)
    for unit in range(tl.program_id(0), programs, tl.num_programs(0)):
        token = unit // HEAD_TILES
        head = (unit - token * HEAD_TILES) * TAKEN
        real = h < HEADS - head
        mask = real[:, None] & (d < WIDTH)[None, :]
        sink = tl.load(sinks_ptr + head + h, mask=real, other=0.0)
        first = as_int64(token) * SPLITS * HEADS + head
        top = tl.where(sink > _LOWEST, sink, _LOWEST)
        for split in range(SPLITS):
            peak = tl.load(peak_ptr + first + split * HEADS + h, mask=real, other=0.0)
            top = tl.where(peak > top, peak, top)
        total = tl.exp(sink - top)
        summed = tl.zeros((TAKEN, PADDED), tl.float32)
        for split in range(SPLITS):
            here = first + split * HEADS
            weight = tl.exp(tl.load(peak_ptr + here + h, mask=real, other=0.0) - top)
            total += tl.load(total_ptr + here + h, mask=real, other=0.0) * weight
            part = part_ptr + here * WIDTH + h[:, None] * WIDTH + d[None, :]
            summed += tl.load(part, mask=mask, other=0.0) * weight[:, None]
        out = summed * (1.0 / total)[:, None]
        to = out_ptr + (as_int64(token) * HEADS + head) * WIDTH + h[:, None] * WIDTH + d[None, :]
        tl.store(to, out.to(out_ptr.dtype.element_ty), mask=mask)


def sparse_attention(
    query: torch.Tensor,
    caches: list[torch.Tensor],
    blocks: list[torch.Tensor],
    offsets: list[torch.Tensor],
    valid: list[torch.Tensor | None],
    sinks: torch.Tensor,
    scale: float,
    rotary: int | None = None,
) -> torch.Tensor:
    """See :func:`ascend_attention.ops.sparse_attention.sparse_attention`."""
    tokens, heads, width = query.shape
    widths = [block.shape[1] for block in blocks]
    cut = plan(current_facts(), tokens, heads, width, widths, query.element_size())
    out = torch.empty(query.shape, dtype=query.dtype, device=query.device)
    query = query if query.stride(2) == 1 else query.contiguous()
    held = (cut.tokens, cut.columns)
    rows = torch.empty((*held, cut.padded), dtype=query.dtype, device=query.device)
    bias = torch.empty(held, dtype=torch.float32, device=query.device)
    span = torch.empty((cut.tokens, 2), dtype=torch.int32, device=query.device)
    sources = [one for one in zip(caches, blocks, offsets, valid, strict=True) if one[1].shape[1]]
    if not sources:
        return out.zero_()
    for start in range(0, tokens, max(cut.tokens, 1)):
        part = slice(start, min(start + cut.tokens, tokens))
        given = [
            (cache, block[part], offset[part], None if mask is None else mask[part])
            for cache, block, offset, mask in sources
        ]
        gather(given, rows, bias, span, cut, width, rotary)
        _attend(query[part], rows, bias, span, sinks, scale, out[part], cut)
    return out


def _attend(
    query: torch.Tensor,
    rows: torch.Tensor,
    bias: torch.Tensor,
    span: torch.Tensor,
    sinks: torch.Tensor,
    scale: float,
    out: torch.Tensor,
    cut: Plan,
) -> None:
    tokens, heads, width = query.shape
    split = cut.splits > 1
    shape = (tokens, cut.splits, heads)
    part = out
    if split:
        part = torch.empty((*shape, width), dtype=torch.float32, device=query.device)
    peak = torch.empty(shape if split else (0,), dtype=torch.float32, device=query.device)
    total = torch.empty(shape if split else (0,), dtype=torch.float32, device=query.device)
    programs = tokens * -(-heads // cut.heads) * cut.splits
    arguments = {
        "query_ptr": query,
        "rows_ptr": rows,
        "bias_ptr": bias,
        "span_ptr": span,
        "sinks_ptr": sinks,
        "out_ptr": part,
        "peak_ptr": peak,
        "total_ptr": total,
        "scale": float(scale),
        "columns": cut.columns,
        "token_stride": query.stride(0),
        "head_stride": query.stride(1),
        "programs": programs,
    }
    shared = {"HEADS": heads, "WIDTH": width, "PADDED": cut.padded, "SPLITS": cut.splits}
    constants = {**shared, "TAKEN": cut.heads, "ROWS": cut.rows}
    launch(_attend_kernel, programs, arguments, constants, cube=True)
    if split:
        merged = tile_rows(
            current_facts(),
            cut.padded,
            streamed=4 + out.element_size(),
            local=12,
            maximum=cut.heads,
        )
        programs = tokens * -(-heads // merged)
        arguments = {
            "part_ptr": part,
            "peak_ptr": peak,
            "total_ptr": total,
            "sinks_ptr": sinks,
            "out_ptr": out,
            "programs": programs,
        }
        launch(_merge_kernel, programs, arguments, {**shared, "TAKEN": merged})
