"""Split, norm and rotation of a fused QKV projection in Triton: a unit of work is some tokens."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import triton
import triton.language as tl

from ascend_ops_core.devices import current_facts
from ascend_ops_core.kernels import as_int64
from ascend_ops_core.launch import launch
from ascend_ops_core.ops.linearnorm.kernels.pieces import channels, copy_heads, norm_and_rotate
from ascend_ops_core.ops.rotary_table.kernels import gather_cos_sin, mrope_cos_sin
from ascend_ops_core.tiling import block_of, next_power_of_two, tile_rows

_Parts = tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]

# Bytes alive per channel besides what is loaded and stored: float32 channels, their squares, the
# products with cosine and sine, and weights.
_LOCAL = 26


@triton.jit
def _rope_kernel(
    qkv_ptr,
    cos_ptr,
    sin_ptr,
    q_weight_ptr,
    k_weight_ptr,
    q_bias_ptr,
    k_bias_ptr,
    sums_ptr,
    query_ptr,
    key_ptr,
    value_ptr,
    gate_ptr,
    tokens,
    row_stride,
    eps,
    programs,
    Q_HEADS: tl.constexpr,
    KV_HEADS: tl.constexpr,
    HALF: tl.constexpr,
    REST: tl.constexpr,
    TOKENS: tl.constexpr,
    Q_ROWS: tl.constexpr,
    K_ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
    BLOCK_REST: tl.constexpr,
    GATED: tl.constexpr,
    WHOLE: tl.constexpr,
    Q_WEIGHTED: tl.constexpr,
    K_WEIGHTED: tl.constexpr,
    Q_BIASED: tl.constexpr,
    K_BIASED: tl.constexpr,
    Q_WIDTH: tl.constexpr,
    K_WIDTH: tl.constexpr,
):
    dim: tl.constexpr = 2 * HALF + REST
    q_step: tl.constexpr = 2 * dim if GATED else dim
    q_w1, q_w2, q_w3 = channels(
        q_weight_ptr, HALF, REST, BLOCK, BLOCK_REST, Q_WEIGHTED and not WHOLE
    )
    k_w1, k_w2, k_w3 = channels(
        k_weight_ptr, HALF, REST, BLOCK, BLOCK_REST, K_WEIGHTED and not WHOLE
    )
    q_b1, q_b2, q_b3 = channels(q_bias_ptr, HALF, REST, BLOCK, BLOCK_REST, Q_BIASED)
    k_b1, k_b2, k_b3 = channels(k_bias_ptr, HALF, REST, BLOCK, BLOCK_REST, K_BIASED)
    t = tl.arange(0, TOKENS)
    c = tl.arange(0, BLOCK)
    for unit in range(tl.program_id(0), programs, tl.num_programs(0)):
        start = as_int64(unit) * TOKENS
        mask = (t < tokens - start)[:, None] & (c < HALF)[None, :]
        angles = start * HALF + t[:, None] * HALF + c[None, :]
        cos = tl.load(cos_ptr + angles, mask=mask, other=0.0).to(tl.float32)
        sin = tl.load(sin_ptr + angles, mask=mask, other=0.0).to(tl.float32)
        of_query = 0.0
        of_key = 0.0
        if WHOLE:
            sums = sums_ptr + start
            if TOKENS == 1:
                of_query = tl.load(sums) / Q_WIDTH
                of_key = tl.load(sums + tokens) / K_WIDTH
            else:
                of_query = tl.load(sums + t, mask=t < tokens - start, other=0.0) / Q_WIDTH
                of_key = tl.load(sums + tokens + t, mask=t < tokens - start, other=0.0) / K_WIDTH
        if Q_HEADS > 0:
            norm_and_rotate(
                qkv_ptr, query_ptr, q_weight_ptr, q_w1, q_w2, q_w3, q_b1, q_b2, q_b3,
                cos, sin, of_query,
                start, tokens, row_stride, eps, Q_HEADS, q_step, HALF, REST, TOKENS, Q_ROWS,
                BLOCK, BLOCK_REST, WHOLE, Q_WEIGHTED, Q_BIASED,
            )  # fmt: skip
            if GATED:
                copy_heads(
                    qkv_ptr + dim, gate_ptr, start, tokens, row_stride,
                    Q_HEADS, q_step, dim, TOKENS, Q_ROWS,
                )  # fmt: skip
        k_ptr = qkv_ptr + Q_HEADS * q_step
        norm_and_rotate(
            k_ptr, key_ptr, k_weight_ptr, k_w1, k_w2, k_w3, k_b1, k_b2, k_b3,
            cos, sin, of_key,
            start, tokens, row_stride, eps, KV_HEADS, dim, HALF, REST, TOKENS, K_ROWS,
            BLOCK, BLOCK_REST, WHOLE, K_WEIGHTED, K_BIASED,
        )  # fmt: skip
        copy_heads(
            k_ptr + KV_HEADS * dim, value_ptr, start, tokens, row_stride,
            KV_HEADS, dim, dim, TOKENS, K_ROWS,
        )  # fmt: skip


@triton.jit
def _sum_of_squares(
    rows_ptr, r, here, row_stride, WIDTH: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr
):
    total = tl.zeros((ROWS,), tl.float32)
    for start in range(0, WIDTH, BLOCK):
        c = start + tl.arange(0, BLOCK)
        mask = here[:, None] & (c < WIDTH)[None, :]
        tile = rows_ptr + r[:, None] * row_stride + c[None, :]
        x = tl.load(tile, mask=mask, other=0.0).to(tl.float32)
        total += tl.sum(x * x, axis=1)
    return total


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
    Q_BLOCK: tl.constexpr,
    K_BLOCK: tl.constexpr,
):
    r = tl.arange(0, ROWS)
    for unit in range(tl.program_id(0), programs, tl.num_programs(0)):
        first = as_int64(unit) * ROWS
        here = r < tokens - first
        rows = qkv_ptr + first * row_stride
        of_query = tl.zeros((ROWS,), tl.float32)
        if Q_WIDTH > 0:
            of_query = _sum_of_squares(rows, r, here, row_stride, Q_WIDTH, ROWS, Q_BLOCK)
        of_key = _sum_of_squares(rows + Q_WIDTH, r, here, row_stride, K_WIDTH, ROWS, K_BLOCK)
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
    facts, sizes = current_facts(), {"streamed": qkv.element_size(), "local": 8}
    q_block, k_block = (min(2048, next_power_of_two(width)) for width in widths)
    most = min(32, next_power_of_two(tokens))
    # Both loops have buffers of their own.
    tile = tile_rows(facts, q_block + k_block, per_row=32, maximum=most, **sizes)
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
        "Q_BLOCK": q_block,
        "K_BLOCK": k_block,
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
    # Rows of a tile in order of tokens, since a tile that gathers would be read element by element.
    if sections is None:
        cos, sin = gather_cos_sin(table[:, :half], table[:, half:], positions)
    else:
        cos, sin = mrope_cos_sin(table[:, :half], table[:, half:], positions, sections, interleaved)
    q_weight, k_weight, q_bias, k_bias = (
        None if one is None else one.contiguous() for one in vectors
    )
    tile = _Tile.of(qkv, half, rest, heads, whole=sums is not None)
    arguments: dict[str, Any] = {
        "qkv_ptr": qkv,
        "cos_ptr": cos,
        "sin_ptr": sin,
        "q_weight_ptr": q_weight,
        "k_weight_ptr": k_weight,
        "q_bias_ptr": q_bias,
        "k_bias_ptr": k_bias,
        "sums_ptr": None if sums is None else sums.contiguous(),
        "query_ptr": query,
        "key_ptr": key,
        "value_ptr": value,
        "gate_ptr": gate if gated else None,
        "tokens": tokens,
        "row_stride": qkv.stride(0),
        "eps": eps,
        "programs": tile.programs,
    }
    constants = {
        "Q_HEADS": q_heads,
        "KV_HEADS": kv_heads,
        "HALF": half,
        "REST": rest,
        "TOKENS": tile.tokens,
        "Q_ROWS": tile.q_heads,
        "K_ROWS": tile.kv_heads,
        "BLOCK": next_power_of_two(half),
        "BLOCK_REST": next_power_of_two(rest),
        "GATED": gated,
        "WHOLE": sums is not None,
        "Q_WEIGHTED": q_weight is not None,
        "K_WEIGHTED": k_weight is not None,
        "Q_BIASED": q_bias is not None,
        "K_BIASED": k_bias is not None,
        "Q_WIDTH": totals[0] * head_dim,
        "K_WIDTH": totals[1] * head_dim,
    }
    launch(_rope_kernel, tile.programs, arguments, constants)
    return query, key, value, gate


@dataclass(frozen=True)
class _Tile:
    """Tokens and heads that are worked on at a time."""

    tokens: int
    q_heads: int
    kv_heads: int
    programs: int

    @staticmethod
    def of(
        qkv: torch.Tensor, half: int, rest: int, heads: tuple[int, int, int], *, whole: bool
    ) -> _Tile:
        """As many tokens as fit with all heads of the keys, then as many heads of the queries."""
        facts, tokens = current_facts(), qkv.shape[0]
        channels = 2 * next_power_of_two(half) + next_power_of_two(rest)
        streamed = 2 * qkv.element_size() * channels
        local = (_LOCAL + (8 if whole else 0)) * channels + 64
        q_most, kv_most = (next_power_of_two(n) for n in heads[:2])
        kv_heads = block_of(facts, streamed=streamed, local=local, minimum=1, maximum=kv_most)
        # Few tokens are spread over the cores before a core takes more than one.
        share = next_power_of_two(-(-tokens // facts.vector_cores))
        taken = block_of(
            facts, streamed=streamed * kv_heads, local=local * kv_heads, minimum=1, maximum=share
        )
        q_heads = block_of(
            facts, streamed=streamed * taken, local=local * taken, minimum=1, maximum=q_most
        )
        return _Tile(taken, q_heads, kv_heads, -(-tokens // taken))
