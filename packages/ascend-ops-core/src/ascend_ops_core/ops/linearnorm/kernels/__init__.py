"""Split, norm and rotation of a fused QKV projection in Triton: a unit of work is a token."""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl

from ascend_ops_core.devices import current_facts
from ascend_ops_core.kernels import as_int64
from ascend_ops_core.launch import launch
from ascend_ops_core.ops.linearnorm.kernels.pieces import copy_heads, norm_and_rotate, table_row
from ascend_ops_core.tiling import block_of, next_power_of_two, tile_rows

_Parts = tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]

# Bytes alive per channel besides what is loaded and stored: float32 channels, their squares, the
# products with cosine and sine, and weights.
_LOCAL = 28


@triton.jit
def _rope_kernel(
    qkv_ptr,
    table_ptr,
    positions_ptr,
    q_weight_ptr,
    k_weight_ptr,
    q_bias_ptr,
    k_bias_ptr,
    sums_ptr,
    query_ptr,
    key_ptr,
    value_ptr,
    gate_ptr,
    programs,
    row_stride,
    axis_stride,
    limit,
    eps,
    Q_HEADS: tl.constexpr,
    KV_HEADS: tl.constexpr,
    HALF: tl.constexpr,
    REST: tl.constexpr,
    Q_ROWS: tl.constexpr,
    K_ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
    BLOCK_REST: tl.constexpr,
    GATED: tl.constexpr,
    AXES: tl.constexpr,
    TIMES: tl.constexpr,
    HEIGHTS: tl.constexpr,
    WIDTHS: tl.constexpr,
    INTERLEAVED: tl.constexpr,
    WHOLE: tl.constexpr,
    Q_WIDTH: tl.constexpr,
    K_WIDTH: tl.constexpr,
):
    dim: tl.constexpr = 2 * HALF + REST
    q_step: tl.constexpr = 2 * dim if GATED else dim
    c = tl.arange(0, BLOCK)
    for unit in range(tl.program_id(0), programs, tl.num_programs(0)):
        token = as_int64(unit)
        cos, sin = table_row(table_ptr, tl.load(positions_ptr + token), limit, HALF, BLOCK)
        if AXES == 3:
            height = tl.load(positions_ptr + axis_stride + token)
            width = tl.load(positions_ptr + 2 * axis_stride + token)
            cos_h, sin_h = table_row(table_ptr, height, limit, HALF, BLOCK)
            cos_w, sin_w = table_row(table_ptr, width, limit, HALF, BLOCK)
            if INTERLEAVED:
                # c // 3 without a division; exact below 2^15.
                third = (c * 21846) >> 16
                within = c - 3 * third
                by_height = tl.where(within == 1, third, HALF) < HEIGHTS
                by_width = tl.where(within == 2, third, HALF) < WIDTHS
                cos = tl.where(by_height, cos_h, cos)
                sin = tl.where(by_height, sin_h, sin)
                cos = tl.where(by_width, cos_w, cos)
                sin = tl.where(by_width, sin_w, sin)
            else:
                cos = tl.where(c < TIMES, cos, tl.where(c < TIMES + HEIGHTS, cos_h, cos_w))
                sin = tl.where(c < TIMES, sin, tl.where(c < TIMES + HEIGHTS, sin_h, sin_w))
        of_query = 0.0
        of_key = 0.0
        if WHOLE:
            of_query = tl.load(sums_ptr + token) / Q_WIDTH
            of_key = tl.load(sums_ptr + programs + token) / K_WIDTH
        row = qkv_ptr + token * row_stride
        query = query_ptr + token * (Q_HEADS * dim)
        if Q_HEADS > 0:
            norm_and_rotate(
                row, query, q_weight_ptr, q_bias_ptr, cos, sin, of_query, eps,
                Q_HEADS, q_step, HALF, REST, Q_ROWS, BLOCK, BLOCK_REST, WHOLE,
            )  # fmt: skip
            if GATED:
                gate = gate_ptr + token * (Q_HEADS * dim)
                copy_heads(row + dim, gate, Q_HEADS, q_step, dim, Q_ROWS)
        row = row + Q_HEADS * q_step
        kv = token * (KV_HEADS * dim)
        norm_and_rotate(
            row, key_ptr + kv, k_weight_ptr, k_bias_ptr, cos, sin, of_key, eps,
            KV_HEADS, dim, HALF, REST, K_ROWS, BLOCK, BLOCK_REST, WHOLE,
        )  # fmt: skip
        copy_heads(row + KV_HEADS * dim, value_ptr + kv, KV_HEADS, dim, dim, K_ROWS)


@triton.jit
def _sum_of_squares(
    rows_ptr, r, here, row_stride, WIDTH: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr
):
    squares = tl.zeros((ROWS, BLOCK), tl.float32)
    for start in range(0, WIDTH, BLOCK):
        c = start + tl.arange(0, BLOCK)
        mask = here[:, None] & (c < WIDTH)[None, :]
        tile = rows_ptr + r[:, None] * row_stride + c[None, :]
        x = tl.load(tile, mask=mask, other=0.0).to(tl.float32)
        squares += x * x
    return tl.sum(squares, axis=1)


@triton.jit
def _variance_kernel(
    qkv_ptr,
    sums_ptr,
    tokens,
    row_stride,
    programs,
    Q_WIDTH: tl.constexpr,
    K_WIDTH: tl.constexpr,
    REPLICAS: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    r = tl.arange(0, ROWS)
    for unit in range(tl.program_id(0), programs, tl.num_programs(0)):
        first = as_int64(unit) * ROWS
        here = r < tokens - first
        rows = qkv_ptr + first * row_stride
        of_query = tl.zeros((ROWS,), tl.float32)
        if Q_WIDTH > 0:
            of_query = _sum_of_squares(rows, r, here, row_stride, Q_WIDTH, ROWS, BLOCK)
        of_key = _sum_of_squares(rows + Q_WIDTH, r, here, row_stride, K_WIDTH, ROWS, BLOCK)
        tl.store(sums_ptr + first + r, of_query, mask=here)
        tl.store(sums_ptr + tokens + first + r, of_key / REPLICAS, mask=here)


def split_qkv_rmsnorm_rope(
    qkv: torch.Tensor,
    cos_sin_cache: torch.Tensor,
    positions: torch.Tensor,
    q_weight: torch.Tensor | None,
    k_weight: torch.Tensor | None,
    q_bias: torch.Tensor | None,
    k_bias: torch.Tensor | None,
    q_heads: int,
    kv_heads: int,
    head_dim: int,
    eps: float,
    gated: bool,
) -> _Parts:
    """See :func:`ascend_ops_core.ops.linearnorm.split_qkv_rmsnorm_rope`."""
    vectors = (q_weight, k_weight, q_bias, k_bias)
    return _start(
        qkv, cos_sin_cache, positions, vectors, (q_heads, kv_heads, head_dim), eps, gated=gated
    )


def split_qkv_rmsnorm_mrope(
    qkv: torch.Tensor,
    cos_sin_cache: torch.Tensor,
    positions: torch.Tensor,
    q_weight: torch.Tensor | None,
    k_weight: torch.Tensor | None,
    q_bias: torch.Tensor | None,
    k_bias: torch.Tensor | None,
    sections: list[int],
    interleaved: bool,
    q_heads: int,
    kv_heads: int,
    head_dim: int,
    eps: float,
    gated: bool,
) -> _Parts:
    """See :func:`ascend_ops_core.ops.linearnorm.split_qkv_rmsnorm_mrope`."""
    vectors = (q_weight, k_weight, q_bias, k_bias)
    return _start(
        qkv,
        cos_sin_cache,
        positions,
        vectors,
        (q_heads, kv_heads, head_dim),
        eps,
        gated=gated,
        sections=sections,
        interleaved=interleaved,
    )


def split_qkv_tp_variance(
    qkv: torch.Tensor, q_heads: int, kv_heads: int, head_dim: int, kv_replicas: int
) -> torch.Tensor:
    """See :func:`ascend_ops_core.ops.linearnorm.split_qkv_tp_variance`."""
    tokens = qkv.shape[0]
    if qkv.stride(1) != 1:
        qkv = qkv.contiguous()
    sums = torch.empty(2, tokens, dtype=torch.float32, device=qkv.device)
    widths = (q_heads * head_dim, kv_heads * head_dim)
    facts, sizes = current_facts(), {"streamed": qkv.element_size(), "local": 16}
    block = block_of(facts, maximum=min(2048, next_power_of_two(max(widths))), **sizes)
    tile = tile_rows(facts, block, per_row=16, maximum=min(32, next_power_of_two(tokens)), **sizes)
    programs = -(-tokens // tile)
    arguments = {
        "qkv_ptr": qkv,
        "sums_ptr": sums,
        "tokens": tokens,
        "row_stride": qkv.stride(0),
        "programs": programs,
    }
    constants = {
        "Q_WIDTH": widths[0],
        "K_WIDTH": widths[1],
        "REPLICAS": kv_replicas,
        "ROWS": tile,
        "BLOCK": block,
    }
    launch(_variance_kernel, programs, arguments, constants)
    return sums


def split_qkv_tp_apply(
    qkv: torch.Tensor,
    sums: torch.Tensor,
    cos_sin_cache: torch.Tensor,
    positions: torch.Tensor,
    q_weight: torch.Tensor,
    k_weight: torch.Tensor,
    q_heads: int,
    kv_heads: int,
    head_dim: int,
    total_q_heads: int,
    total_kv_heads: int,
    eps: float,
) -> _Parts:
    """See :func:`ascend_ops_core.ops.linearnorm.split_qkv_tp_apply`."""
    return _start(
        qkv,
        cos_sin_cache,
        positions,
        (q_weight, k_weight, None, None),
        (q_heads, kv_heads, head_dim),
        eps,
        sums=sums,
        totals=(total_q_heads, total_kv_heads),
    )


def _start(
    qkv: torch.Tensor,
    table: torch.Tensor,
    positions: torch.Tensor,
    vectors: tuple[torch.Tensor | None, ...],
    heads: tuple[int, int, int],
    eps: float,
    *,
    gated: bool = False,
    sections: list[int] | None = None,
    interleaved: bool = False,
    sums: torch.Tensor | None = None,
    totals: tuple[int, int] = (1, 1),
) -> _Parts:
    """Launch the kernel of split, norm and rotation."""
    q_heads, kv_heads, head_dim = heads
    tokens, half = qkv.shape[0], table.shape[1] // 2
    rest = head_dim - 2 * half
    if qkv.stride(1) != 1:
        qkv = qkv.contiguous()
    query, key, value, gate = (
        torch.empty(tokens, n * head_dim, dtype=qkv.dtype, device=qkv.device)
        for n in (q_heads, kv_heads, kv_heads, q_heads if gated else 0)
    )
    positions = positions.contiguous()
    q_weight, k_weight, q_bias, k_bias = (
        None if one is None else one.contiguous() for one in vectors
    )
    rows = tile_rows(
        current_facts(),
        2 * next_power_of_two(half) + next_power_of_two(rest),
        streamed=2 * qkv.element_size(),
        local=_LOCAL + (8 if sums is not None else 0),
        per_row=64,
        maximum=next_power_of_two(max(q_heads, kv_heads)),
    )
    # The compiler for A5 ends with invalid IR at a tile of one row with masked channels.
    masked = any(n & (n - 1) for n in (half, rest))
    rows_of = {n: max(min(rows, next_power_of_two(n)), 2 if masked else 1) for n in heads[:2]}
    arguments: dict[str, Any] = {
        "qkv_ptr": qkv,
        "table_ptr": table.contiguous(),
        "positions_ptr": positions,
        "q_weight_ptr": q_weight,
        "k_weight_ptr": k_weight,
        "q_bias_ptr": q_bias,
        "k_bias_ptr": k_bias,
        "sums_ptr": None if sums is None else sums.contiguous(),
        "query_ptr": query,
        "key_ptr": key,
        "value_ptr": value,
        "gate_ptr": gate if gated else None,
        "programs": tokens,
        "row_stride": qkv.stride(0),
        "axis_stride": positions.stride(0),
        "limit": table.shape[0],
        "eps": eps,
    }
    times, heights, widths = sections or (half, 0, 0)
    constants = {
        "Q_HEADS": q_heads,
        "KV_HEADS": kv_heads,
        "HALF": half,
        "REST": rest,
        "Q_ROWS": rows_of[q_heads],
        "K_ROWS": rows_of[kv_heads],
        "BLOCK": next_power_of_two(half),
        "BLOCK_REST": next_power_of_two(rest),
        "GATED": gated,
        "AXES": 1 if sections is None else 3,
        "TIMES": times,
        "HEIGHTS": heights,
        "WIDTHS": widths,
        "INTERLEAVED": interleaved,
        "WHOLE": sums is not None,
        "Q_WIDTH": totals[0] * head_dim,
        "K_WIDTH": totals[1] * head_dim,
    }
    launch(_rope_kernel, tokens, arguments, constants)
    return query, key, value, gate
