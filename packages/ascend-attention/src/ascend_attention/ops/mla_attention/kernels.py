"""Latent attention in Triton: a tile of heads of one token over the blocks of its request.

- All heads share a row, which is key and value at once, so a tile of rows is read from its block as
  it lies there and multiplied twice.
- As in the sparse attention, a first pass over the rows keeps peak and sum alone, and a second sums
  weighted rows in the accumulator of the matrix unit: rescaling 512 values per head in every tile
  would make the vector unit the limit.
- With few tokens a context is split between programs, and the parts are merged.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import triton
import triton.language as tl
from ascend_ops_core.devices import current_facts
from ascend_ops_core.kernels import as_int64
from ascend_ops_core.launch import launch
from ascend_ops_core.tiling import next_power_of_two

from ascend_attention.ops.attention_states.kernels import merge_into
from ascend_attention.ops.sparse_attention.plan import SMALLEST_TILE, plan, splits_of

# Below every logit, above -inf, so that differences of peaks are numbers.
_LOWEST = tl.constexpr(-3.0e38)


@triton.jit
def _tile(
    latents_ptr,
    ropes_ptr,
    table,
    start,
    context,
    latents_block,
    latents_row,
    ropes_block,
    ropes_row,
    RANK: tl.constexpr,
    ROTARY: tl.constexpr,
    PADDED: tl.constexpr,
    PADDED_ROPE: tl.constexpr,
    PER_BLOCK: tl.constexpr,
    ROWS: tl.constexpr,
):
    """Latents and rotated keys of the rows from ``start`` on, which lie in one block."""
    r = tl.arange(0, ROWS)
    d = tl.arange(0, PADDED)
    e = tl.arange(0, PADDED_ROPE)
    column = start // PER_BLOCK
    block = as_int64(tl.load(table + column))
    offset = as_int64(start - column * PER_BLOCK)
    seen = (r < context - start)[:, None]
    at = latents_ptr + block * latents_block + offset * latents_row
    at += r[:, None] * latents_row + d[None, :]
    latent = tl.load(at, mask=seen & (d < RANK)[None, :], other=0.0)
    at = ropes_ptr + block * ropes_block + offset * ropes_row
    at += r[:, None] * ropes_row + e[None, :]
    rope = tl.load(at, mask=seen & (e < ROTARY)[None, :], other=0.0)
    return latent, rope


@triton.jit
def _logits(q_latent, q_rope, latent, rope, start, context, scale, ROWS: tl.constexpr):
    """``[heads, rows]`` float32, -inf behind the context."""
    product = tl.dot(q_latent, tl.trans(latent), input_precision="ieee")
    product = tl.dot(q_rope, tl.trans(rope), product, input_precision="ieee")
    seen = tl.arange(0, ROWS) < context - start
    return product * scale + tl.where(seen, 0.0, float("-inf"))[None, :]


@triton.jit
def _mla_attention_kernel(
    q_latent_ptr,
    q_rope_ptr,
    latents_ptr,
    ropes_ptr,
    table_ptr,
    request_ptr,
    position_ptr,
    out_ptr,
    lse_ptr,
    scale,
    tokens,
    latent_token,
    latent_head,
    rope_token,
    rope_head,
    latents_block,
    latents_row,
    ropes_block,
    ropes_row,
    table_stride,
    programs,
    HEADS: tl.constexpr,
    RANK: tl.constexpr,
    ROTARY: tl.constexpr,
    PADDED: tl.constexpr,
    PADDED_ROPE: tl.constexpr,
    PER_BLOCK: tl.constexpr,
    TAKEN: tl.constexpr,
    ROWS: tl.constexpr,
    SPLITS: tl.constexpr,
):
    HEAD_TILES: tl.constexpr = (HEADS + TAKEN - 1) // TAKEN
    h = tl.arange(0, TAKEN)
    d = tl.arange(0, PADDED)
    e = tl.arange(0, PADDED_ROPE)
    for unit in range(tl.program_id(0), programs, tl.num_programs(0)):
        pair = unit // SPLITS
        split = unit - pair * SPLITS
        token = pair // HEAD_TILES
        head = (pair - token * HEAD_TILES) * TAKEN
        real = h < HEADS - head
        mask = real[:, None] & (d < RANK)[None, :]
        at = q_latent_ptr + as_int64(token) * latent_token + as_int64(head) * latent_head
        q_latent = tl.load(at + h[:, None] * latent_head + d[None, :], mask=mask, other=0.0)
        at = q_rope_ptr + as_int64(token) * rope_token + as_int64(head) * rope_head
        q_rope = tl.load(
            at + h[:, None] * rope_head + e[None, :],
            mask=real[:, None] & (e < ROTARY)[None, :],
            other=0.0,
        )
        request = tl.load(request_ptr + token).to(tl.int32)
        # Padding has a negative position, and so no tile.
        context = tl.load(position_ptr + token).to(tl.int32) + 1
        tiles = (tl.where(context > 0, context, 0) + ROWS - 1) // ROWS
        share = (tiles + SPLITS - 1) // SPLITS
        last = tl.where((split + 1) * share < tiles, (split + 1) * share, tiles) * ROWS
        first = split * share * ROWS
        table = table_ptr + as_int64(request) * table_stride
        peak = tl.full((TAKEN,), _LOWEST, tl.float32)
        total = tl.zeros((TAKEN,), tl.float32)
        for start in range(first, last, ROWS):
            latent, rope = _tile(
                latents_ptr, ropes_ptr, table, start, context, latents_block, latents_row,
                ropes_block, ropes_row, RANK, ROTARY, PADDED, PADDED_ROPE, PER_BLOCK, ROWS,
            )  # fmt: skip
            logits = _logits(q_latent, q_rope, latent, rope, start, context, scale, ROWS)
            top = tl.max(logits, axis=1)
            higher = tl.where(top > peak, top, peak)
            total = total * tl.exp(peak - higher)
            total += tl.sum(tl.exp(logits - higher[:, None]), axis=1)
            peak = higher
        some = total > 0.0
        factor = 1.0 / tl.where(some, total, 1.0)
        summed = tl.zeros((TAKEN, PADDED), tl.float32)
        for start in range(first, last, ROWS):
            latent, rope = _tile(
                latents_ptr, ropes_ptr, table, start, context, latents_block, latents_row,
                ropes_block, ropes_row, RANK, ROTARY, PADDED, PADDED_ROPE, PER_BLOCK, ROWS,
            )  # fmt: skip
            logits = _logits(q_latent, q_rope, latent, rope, start, context, scale, ROWS)
            weights = tl.exp(logits - peak[:, None]) * factor[:, None]
            summed = tl.dot(weights.to(latent.dtype), latent, summed, input_precision="ieee")
        to = (as_int64(split) * tokens + token) * HEADS + head
        out = out_ptr + to * RANK + h[:, None] * RANK + d[None, :]
        tl.store(out, summed.to(out_ptr.dtype.element_ty), mask=mask)
        lse = tl.where(some, peak + tl.log(tl.where(some, total, 1.0)), float("-inf"))
        tl.store(lse_ptr + to + h, lse, mask=real)


def mla_attention(
    q_latent: torch.Tensor,
    q_rope: torch.Tensor,
    latents: torch.Tensor,
    ropes: torch.Tensor,
    block_table: torch.Tensor,
    request: torch.Tensor,
    position: torch.Tensor,
    scale: float,
    query_ends: Sequence[int],
    seq_lens: Sequence[int],
) -> tuple[torch.Tensor, torch.Tensor]:
    """See :func:`ascend_attention.ops.mla_attention.mla_attention`."""
    q_latent, q_rope = (x if x.stride(2) == 1 else x.contiguous() for x in (q_latent, q_rope))
    tokens, heads, rank = q_latent.shape
    rotary, per_block = q_rope.shape[2], latents.shape[1]
    reach = block_table.shape[1] * per_block
    facts = current_facts()
    cut = plan(facts, tokens, heads, rank, [reach], latents.element_size())
    # A tile lies in one block, whose rows are a multiple of 16.
    rows = min(cut.rows, per_block & -per_block)
    # Nothing is gathered, so all tokens run together.
    splits = splits_of(facts, tokens * -(-heads // cut.heads), cut.columns // cut.rows)
    device = q_latent.device
    out = torch.empty((tokens, heads, rank), dtype=q_latent.dtype, device=device)
    part = out
    if splits > 1:
        part = torch.empty((splits, tokens, heads, rank), dtype=torch.float32, device=device)
    lse = torch.empty((splits, tokens, heads), dtype=torch.float32, device=device)
    programs = tokens * -(-heads // cut.heads) * splits
    arguments = {
        "q_latent_ptr": q_latent,
        "q_rope_ptr": q_rope,
        "latents_ptr": latents,
        "ropes_ptr": ropes,
        "table_ptr": block_table,
        "request_ptr": request.contiguous(),
        "position_ptr": position.contiguous(),
        "out_ptr": part,
        "lse_ptr": lse,
        "scale": float(scale),
        "tokens": tokens,
        "latent_token": q_latent.stride(0),
        "latent_head": q_latent.stride(1),
        "rope_token": q_rope.stride(0),
        "rope_head": q_rope.stride(1),
        "latents_block": latents.stride(0),
        "latents_row": latents.stride(1),
        "ropes_block": ropes.stride(0),
        "ropes_row": ropes.stride(1),
        "table_stride": block_table.stride(0),
        "programs": programs,
    }
    constants = {
        "HEADS": heads,
        "RANK": rank,
        "ROTARY": rotary,
        "PADDED": cut.padded,
        "PADDED_ROPE": max(next_power_of_two(rotary), SMALLEST_TILE),
        "PER_BLOCK": per_block,
        "TAKEN": cut.heads,
        "ROWS": rows,
        "SPLITS": splits,
    }
    launch(_mla_attention_kernel, programs, arguments, constants, cube=True)
    if splits > 1:
        return out, merge_into(part, lse, out)
    return out, lse[0]
