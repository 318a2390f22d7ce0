"""Sparse MLA in Triton: gather, attend in two passes, and merge where the rows were split.

The form is that of :mod:`ascend_attention.ops.sparse_attention.kernels`, whose gathering it uses.
Latents and rotated parts are gathered apart, so that both are powers of two wide and only latents
enter the second product.
"""

from __future__ import annotations

from dataclasses import replace

import torch
import triton
import triton.language as tl
from ascend_ops_core.devices import current_facts
from ascend_ops_core.kernels import as_int64
from ascend_ops_core.launch import launch
from ascend_ops_core.tiling import next_power_of_two, tile_rows

from ascend_attention.ops.sparse_attention.kernels.gathering import gather
from ascend_attention.ops.sparse_attention.plan import SMALLEST_TILE, Plan, plan
from ascend_attention.ops.sparse_mla.reference import located

# Below every logit, above -inf, so that differences of peaks are numbers.
_LOWEST = tl.constexpr(-3.0e38)


@triton.jit
def _logits(latent, rope, tile, rope_tile, bias, scale):
    """``[heads, rows]`` float32, -inf where the bias says that there is no row."""
    product = tl.dot(latent, tl.trans(tile), input_precision="ieee")
    product = tl.dot(rope, tl.trans(rope_tile), product, input_precision="ieee")
    return product * scale + bias[None, :]


@triton.jit
def _attend_kernel(
    latent_ptr,
    rope_ptr,
    rows_ptr,
    rope_rows_ptr,
    bias_ptr,
    span_ptr,
    out_ptr,
    peak_ptr,
    total_ptr,
    scale,
    columns,
    latent_token_stride,
    latent_head_stride,
    rope_token_stride,
    rope_head_stride,
    programs,
    HEADS: tl.constexpr,
    WIDTH: tl.constexpr,
    PADDED: tl.constexpr,
    ROPE: tl.constexpr,
    ROPE_PADDED: tl.constexpr,
    TAKEN: tl.constexpr,
    ROWS: tl.constexpr,
    SPLITS: tl.constexpr,
    STATES: tl.constexpr,
):
    HEAD_TILES: tl.constexpr = (HEADS + TAKEN - 1) // TAKEN
    h = tl.arange(0, TAKEN)
    d = tl.arange(0, PADDED)
    e = tl.arange(0, ROPE_PADDED)
    r = tl.arange(0, ROWS)
    for unit in range(tl.program_id(0), programs, tl.num_programs(0)):
        pair = unit // SPLITS
        split = unit - pair * SPLITS
        token = pair // HEAD_TILES
        head = (pair - token * HEAD_TILES) * TAKEN
        real = h < HEADS - head
        mask = real[:, None] & (d < WIDTH)[None, :]
        at = latent_ptr + as_int64(token) * latent_token_stride
        at += as_int64(head) * latent_head_stride
        latent = tl.load(at + h[:, None] * latent_head_stride + d[None, :], mask=mask, other=0.0)
        at = rope_ptr + as_int64(token) * rope_token_stride + as_int64(head) * rope_head_stride
        rope = tl.load(
            at + h[:, None] * rope_head_stride + e[None, :],
            mask=real[:, None] & (e < ROPE)[None, :],
            other=0.0,
        )
        used = tl.load(span_ptr + 2 * token + 1)
        share = (used + SPLITS - 1) // SPLITS
        behind = tl.where((split + 1) * share < used, (split + 1) * share, used)
        origin = tl.load(span_ptr + 2 * token)
        first = (origin + split * share) * ROWS
        last = (origin + behind) * ROWS
        start_of = as_int64(token) * columns
        bias_row = bias_ptr + start_of + r
        row = rows_ptr + start_of * PADDED + r[:, None] * PADDED + d[None, :]
        rope_row = rope_rows_ptr + start_of * ROPE_PADDED + r[:, None] * ROPE_PADDED + e[None, :]
        peak = tl.full((TAKEN,), _LOWEST, tl.float32)
        total = tl.zeros((TAKEN,), tl.float32)
        for start in range(first, last, ROWS):
            tile = tl.load(row + as_int64(start) * PADDED)
            rope_tile = tl.load(rope_row + as_int64(start) * ROPE_PADDED)
            logits = _logits(latent, rope, tile, rope_tile, tl.load(bias_row + start), scale)
            top = tl.max(logits, axis=1)
            higher = tl.where(top > peak, top, peak)
            total = total * tl.exp(peak - higher)
            total += tl.sum(tl.exp(logits - higher[:, None]), axis=1)
            peak = higher
        factor = tl.full((TAKEN,), 1.0, tl.float32)
        if SPLITS == 1:
            factor = 1.0 / tl.where(total > 0.0, total, 1.0)
        summed = tl.zeros((TAKEN, PADDED), tl.float32)
        for start in range(first, last, ROWS):
            tile = tl.load(row + as_int64(start) * PADDED)
            rope_tile = tl.load(rope_row + as_int64(start) * ROPE_PADDED)
            logits = _logits(latent, rope, tile, rope_tile, tl.load(bias_row + start), scale)
            weights = tl.exp(logits - peak[:, None]) * factor[:, None]
            summed = tl.dot(weights.to(tile.dtype), tile, summed, input_precision="ieee")
        to = (as_int64(token) * SPLITS + split) * HEADS + head
        out = out_ptr + to * WIDTH + h[:, None] * WIDTH + d[None, :]
        tl.store(out, summed.to(out_ptr.dtype.element_ty), mask=mask)
        if STATES:
            tl.store(peak_ptr + to + h, peak, mask=real)
            tl.store(total_ptr + to + h, total, mask=real)


@triton.jit
def _merge_kernel(
    part_ptr,
    peak_ptr,
    total_ptr,
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
        first = as_int64(token) * SPLITS * HEADS + head
        top = tl.full((TAKEN,), _LOWEST, tl.float32)
        for split in range(SPLITS):
            peak = tl.load(peak_ptr + first + split * HEADS + h, mask=real, other=0.0)
            top = tl.where(peak > top, peak, top)
        total = tl.zeros((TAKEN,), tl.float32)
        summed = tl.zeros((TAKEN, PADDED), tl.float32)
        for split in range(SPLITS):
            here = first + split * HEADS
            weight = tl.exp(tl.load(peak_ptr + here + h, mask=real, other=0.0) - top)
            total += tl.load(total_ptr + here + h, mask=real, other=0.0) * weight
            part = part_ptr + here * WIDTH + h[:, None] * WIDTH + d[None, :]
            summed += tl.load(part, mask=mask, other=0.0) * weight[:, None]
        out = summed * (1.0 / tl.where(total > 0.0, total, 1.0))[:, None]
        to = out_ptr + (as_int64(token) * HEADS + head) * WIDTH + h[:, None] * WIDTH + d[None, :]
        tl.store(to, out.to(out_ptr.dtype.element_ty), mask=mask)


def sparse_mla(
    query_latent: torch.Tensor,
    query_rope: torch.Tensor,
    latent_cache: torch.Tensor,
    rope_cache: torch.Tensor,
    selected: torch.Tensor,
    block_table: torch.Tensor,
    query_ends: torch.Tensor,
    seq_lens: torch.Tensor,
    scale: float,
) -> torch.Tensor:
    """See :func:`ascend_attention.ops.sparse_mla.sparse_mla`."""
    out = torch.empty(query_latent.shape, dtype=query_latent.dtype, device=query_latent.device)
    if not selected.shape[1] or not block_table.numel():
        return out.zero_()
    place = located(selected, block_table, query_ends, seq_lens, latent_cache.shape[1])
    over_rows(query_latent, query_rope, latent_cache, rope_cache, *place, scale, out, None)
    return out


def over_rows(
    query_latent: torch.Tensor,
    query_rope: torch.Tensor,
    latent_cache: torch.Tensor,
    rope_cache: torch.Tensor,
    block: torch.Tensor,
    offset: torch.Tensor,
    scale: float,
    out: torch.Tensor,
    lse: torch.Tensor | None,
) -> None:
    """Attention over rows at given places, tile of queries after tile.

    Args:
        query_latent: ``[T, H, L]``.
        query_rope: ``[T, H, R]``.
        latent_cache: ``[B, P, L]``.
        rope_cache: ``[B, P, R]``.
        block: ``[T, K]`` int32, negative where there is no row; ``K`` at least 1.
        offset: ``[T, K]`` int32.
        scale: factor on the dot products.
        out: ``[T, H, L]``; written.
        lse: ``[T, H]`` float32, written, if the softmax's denominators are needed.
    """
    tokens, heads, width = query_latent.shape
    rope = query_rope.shape[2]
    dtype, device = query_latent.dtype, query_latent.device
    query_latent = query_latent if query_latent.stride(2) == 1 else query_latent.contiguous()
    query_rope = query_rope if query_rope.stride(2) == 1 else query_rope.contiguous()
    facts = current_facts()
    cut = plan(facts, tokens, heads, width, [block.shape[1]], query_latent.element_size())
    turned = replace(cut, padded=max(next_power_of_two(rope), SMALLEST_TILE))
    held = (cut.tokens, cut.columns)
    rows = torch.empty((*held, cut.padded), dtype=dtype, device=device)
    rope_rows = torch.empty((*held, turned.padded), dtype=dtype, device=device)
    bias = torch.empty(held, dtype=torch.float32, device=device)
    span = torch.empty((cut.tokens, 2), dtype=torch.int32, device=device)
    for start in range(0, tokens, max(cut.tokens, 1)):
        part = slice(start, min(start + cut.tokens, tokens))
        place = block[part], offset[part], None
        gather([(latent_cache, *place)], rows, bias, span, cut, width, None)
        gather([(rope_cache, *place)], rope_rows, bias, span, turned, rope, None)
        gathered = rows, rope_rows, bias, span
        states = None if lse is None else lse[part]
        attend(query_latent[part], query_rope[part], gathered, scale, out[part], cut, states)


def attend(
    latent: torch.Tensor,
    rope: torch.Tensor,
    gathered: tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor],
    scale: float,
    out: torch.Tensor,
    cut: Plan,
    lse: torch.Tensor | None = None,
) -> None:
    """Attention over gathered rows.

    Args:
        latent: ``[t, H, L]`` queries, stride 1 inside.
        rope: ``[t, H, R]``, the same.
        gathered: ``[t or more, columns, padded]`` latents and rotated parts, their
            ``[t or more, columns]`` bias, and ``[t or more, 2]`` int32, first tile and number of
            tiles of every query.
        scale: factor on the dot products.
        out: ``[t, H, L]``; written.
        cut: the sizes.
        lse: ``[t, H]`` float32, the logarithms of the softmax's denominators; written.
    """
    rows, rope_rows, bias, span = gathered
    tokens, heads, width = latent.shape
    split = cut.splits > 1
    shape = (tokens, cut.splits, heads)
    part = out
    if split:
        part = torch.empty((*shape, width), dtype=torch.float32, device=latent.device)
    states = split or lse is not None
    peak = torch.empty(shape if states else (0,), dtype=torch.float32, device=latent.device)
    total = torch.empty(shape if states else (0,), dtype=torch.float32, device=latent.device)
    programs = tokens * -(-heads // cut.heads) * cut.splits
    arguments = {
        "latent_ptr": latent,
        "rope_ptr": rope,
        "rows_ptr": rows,
        "rope_rows_ptr": rope_rows,
        "bias_ptr": bias,
        "span_ptr": span,
        "out_ptr": part,
        "peak_ptr": peak,
        "total_ptr": total,
        "scale": float(scale),
        "columns": cut.columns,
        "latent_token_stride": latent.stride(0),
        "latent_head_stride": latent.stride(1),
        "rope_token_stride": rope.stride(0),
        "rope_head_stride": rope.stride(1),
        "programs": programs,
    }
    shared = {"HEADS": heads, "WIDTH": width, "PADDED": cut.padded, "SPLITS": cut.splits}
    turned = {"ROPE": rope.shape[2], "ROPE_PADDED": rope_rows.shape[2]}
    constants = {**shared, **turned, "TAKEN": cut.heads, "ROWS": cut.rows, "STATES": states}
    launch(_attend_kernel, programs, arguments, constants, cube=True)
    if lse is not None:
        # A split without a row has a sum of 0.
        lse.copy_((peak + total.log()).logsumexp(dim=1))
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
            "out_ptr": out,
            "programs": programs,
        }
        launch(_merge_kernel, programs, arguments, {**shared, "TAKEN": merged})
