"""Quantised rows in Triton: written one by one, and unpacked while they are gathered for attention.

A row is a tile with a line for every group of values.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from ascend_ops_core.devices import current_facts
from ascend_ops_core.kernels import as_int64
from ascend_ops_core.launch import launch
from ascend_ops_core.ops.quantization.formats import LARGEST
from ascend_ops_core.ops.quantization.kernels import divided, magnitude, rounded_to_int8
from ascend_ops_core.tiling import next_power_of_two

from ascend_attention.ops.quantized_mla.layout import GROUP, rotated_part, scales_part
from ascend_attention.ops.sparse_attention.plan import SMALLEST_TILE, plan
from ascend_attention.ops.sparse_mla.kernels import attend
from ascend_attention.ops.sparse_mla.reference import located

# With a single line the compiler for A5 makes invalid code of the masked tile.
_FEWEST_LINES = 2


@triton.jit
def _write_kernel(
    latent_ptr,
    rope_ptr,
    block_ptr,
    offset_ptr,
    values_ptr,
    rotated_ptr,
    scales_ptr,
    latent_stride,
    rope_stride,
    block_bytes,
    row_bytes,
    programs,
    WIDTH: tl.constexpr,
    ROPE: tl.constexpr,
    GROUPS: tl.constexpr,
    LINES: tl.constexpr,
    LANES: tl.constexpr,
    GROUP: tl.constexpr,
    LARGEST: tl.constexpr,
):
    g = tl.arange(0, LINES)
    r = tl.arange(0, LANES)
    at = g[:, None] * GROUP + tl.arange(0, GROUP)[None, :]
    inside = at < WIDTH
    for unit in range(tl.program_id(0), programs, tl.num_programs(0)):
        block = tl.load(block_ptr + unit).to(tl.int32)
        offset = tl.load(offset_ptr + unit).to(tl.int32)
        if (block >= 0) & (offset >= 0):
            row = latent_ptr + as_int64(unit) * latent_stride
            x = tl.load(row + at, mask=inside, other=0.0).to(tl.float32)
            scale = tl.max(magnitude(x), axis=1) / LARGEST
            start = as_int64(block) * block_bytes + as_int64(offset) * row_bytes
            tl.store(values_ptr + start + at, rounded_to_int8(divided(x, scale)), mask=inside)
            tl.store(scales_ptr + start // 4 + g, scale, mask=g < GROUPS)
            rotated = tl.load(rope_ptr + as_int64(unit) * rope_stride + r, mask=r < ROPE, other=0.0)
            tl.store(rotated_ptr + start // 2 + r, rotated.to(tl.bfloat16), mask=r < ROPE)


@triton.jit
def _gather_kernel(
    block_ptr,
    offset_ptr,
    values_ptr,
    rotated_ptr,
    scales_ptr,
    span_ptr,
    rows_ptr,
    rope_rows_ptr,
    count,
    block_bytes,
    row_bytes,
    columns,
    programs,
    WIDTH: tl.constexpr,
    PADDED: tl.constexpr,
    ROPE: tl.constexpr,
    ROPE_PADDED: tl.constexpr,
    GROUPS: tl.constexpr,
    LINES: tl.constexpr,
    GROUP: tl.constexpr,
    ROWS: tl.constexpr,
):
    g = tl.arange(0, LINES)
    r = tl.arange(0, ROPE_PADDED)
    at = g[:, None] * GROUP + tl.arange(0, GROUP)[None, :]
    tiles = columns // ROWS
    for unit in range(tl.program_id(0), programs, tl.num_programs(0)):
        token = unit // tiles
        tile = unit - token * tiles
        if tile < tl.load(span_ptr + 2 * token + 1):
            for i in range(ROWS):
                column = tile * ROWS + i
                values = tl.zeros((LINES, GROUP), rows_ptr.dtype.element_ty)
                rotated = tl.zeros((ROPE_PADDED,), rows_ptr.dtype.element_ty)
                if column < count:
                    place = as_int64(token) * count + column
                    block = tl.load(block_ptr + place).to(tl.int32)
                    offset = tl.load(offset_ptr + place).to(tl.int32)
                    if block >= 0:
                        start = as_int64(block) * block_bytes + as_int64(offset) * row_bytes
                        scale = tl.load(scales_ptr + start // 4 + g, mask=g < GROUPS, other=0.0)
                        bits = tl.load(values_ptr + start + at, mask=at < WIDTH, other=0)
                        values = (bits.to(tl.float32) * scale[:, None]).to(values.dtype)
                        rotated = tl.load(rotated_ptr + start // 2 + r, mask=r < ROPE, other=0.0)
                        rotated = rotated.to(rows_ptr.dtype.element_ty)
                to = as_int64(token) * columns + column
                tl.store(rows_ptr + to * PADDED + at, values, mask=at < PADDED)
                tl.store(rope_rows_ptr + to * ROPE_PADDED + r, rotated)


def quantize_mla_rows(
    cache: torch.Tensor,
    latent: torch.Tensor,
    rope: torch.Tensor,
    block: torch.Tensor,
    offset: torch.Tensor,
) -> None:
    """See :func:`ascend_attention.ops.quantized_mla.quantize_mla_rows`."""
    latent = latent if latent.stride(1) == 1 else latent.contiguous()
    rope = rope if rope.stride(1) == 1 else rope.contiguous()
    count, width = latent.shape
    arguments = {
        "latent_ptr": latent,
        "rope_ptr": rope,
        "block_ptr": block.contiguous(),
        "offset_ptr": offset.contiguous(),
        **_parts(cache, width, rope.shape[1]),
        "latent_stride": latent.stride(0),
        "rope_stride": rope.stride(0),
        "programs": count,
    }
    constants = {
        "WIDTH": width,
        "ROPE": rope.shape[1],
        **_groups(width),
        "LANES": max(next_power_of_two(rope.shape[1]), SMALLEST_TILE),
        "LARGEST": LARGEST[torch.int8],
    }
    launch(_write_kernel, count, arguments, constants)


def quantized_sparse_mla(
    query_latent: torch.Tensor,
    query_rope: torch.Tensor,
    cache: torch.Tensor,
    selected: torch.Tensor,
    block_table: torch.Tensor,
    query_ends: torch.Tensor,
    seq_lens: torch.Tensor,
    scale: float,
) -> torch.Tensor:
    """See :func:`ascend_attention.ops.quantized_mla.quantized_sparse_mla`."""
    out = torch.empty(query_latent.shape, dtype=query_latent.dtype, device=query_latent.device)
    if not selected.shape[1] or not block_table.numel():
        return out.zero_()
    place = located(selected, block_table, query_ends, seq_lens, cache.shape[1])
    over_records(query_latent, query_rope, cache, *place, scale, out, None)
    return out


def over_records(
    query_latent: torch.Tensor,
    query_rope: torch.Tensor,
    cache: torch.Tensor,
    block: torch.Tensor,
    offset: torch.Tensor,
    scale: float,
    out: torch.Tensor,
    lse: torch.Tensor | None,
) -> None:
    """Attention over records at given places, tile of queries after tile.

    Args:
        query_latent: ``[T, H, L]``.
        query_rope: ``[T, H, R]``.
        cache: ``[B, P, row_bytes(L, R)]`` int8.
        block: ``[T, K]`` int32, negative where there is no row, behind all rows; ``K`` at least 1.
        offset: ``[T, K]`` int32.
        scale: factor on the dot products.
        out: ``[T, H, L]``; written.
        lse: ``[T, H]`` float32, written, if the softmax's denominators are needed.
    """
    tokens, heads, width = query_latent.shape
    rope, places = query_rope.shape[2], block.shape[1]
    dtype, device = query_latent.dtype, query_latent.device
    query_latent = query_latent if query_latent.stride(2) == 1 else query_latent.contiguous()
    query_rope = query_rope if query_rope.stride(2) == 1 else query_rope.contiguous()
    cut = plan(current_facts(), tokens, heads, width, [places], query_latent.element_size())
    turned = max(next_power_of_two(rope), SMALLEST_TILE)
    held = (cut.tokens, cut.columns)
    rows = torch.empty((*held, cut.padded), dtype=dtype, device=device)
    rope_rows = torch.empty((*held, turned), dtype=dtype, device=device)
    # Rows come first among the places, so that a tile is empty where its first place is.
    real = torch.nn.functional.pad(block, (0, cut.columns - places), value=-1) >= 0
    bias = torch.where(real, 0.0, float("-inf"))
    used = torch.div(real.sum(1, dtype=torch.int32) + cut.rows - 1, cut.rows, rounding_mode="floor")
    span = torch.stack((torch.zeros_like(used), used), dim=1)
    constants = {
        "WIDTH": width,
        "PADDED": cut.padded,
        "ROPE": rope,
        "ROPE_PADDED": turned,
        **_groups(width),
        "ROWS": cut.rows,
    }
    for start in range(0, tokens, max(cut.tokens, 1)):
        part = slice(start, min(start + cut.tokens, tokens))
        programs = (part.stop - start) * (cut.columns // cut.rows)
        arguments = {
            "block_ptr": block[part],
            "offset_ptr": offset[part],
            **_parts(cache, width, rope),
            "span_ptr": span[part],
            "rows_ptr": rows,
            "rope_rows_ptr": rope_rows,
            "count": places,
            "columns": cut.columns,
            "programs": programs,
        }
        launch(_gather_kernel, programs, arguments, constants)
        gathered = rows, rope_rows, bias[part], span[part]
        states = None if lse is None else lse[part]
        attend(query_latent[part], query_rope[part], gathered, scale, out[part], cut, states)


def _parts(cache: torch.Tensor, width: int, rope: int) -> dict[str, Any]:
    return {
        "values_ptr": cache,
        "rotated_ptr": rotated_part(cache, width, rope),
        "scales_ptr": scales_part(cache, width, rope),
        "block_bytes": cache.stride(0),
        "row_bytes": cache.stride(1),
    }


def _groups(width: int) -> dict[str, int]:
    groups = width // GROUP
    lines = max(next_power_of_two(groups), _FEWEST_LINES)
    return {"GROUPS": groups, "LINES": lines, "GROUP": GROUP}
