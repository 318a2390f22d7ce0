"""What follows a fused QKV projection: split, RMS norm of query and key, rotary embedding.

vLLM's plugin for Ascend has a second set of kernels for A5 ("SIMT"), whose first kernel gathers the
rotary table's rows by position for the second. Here every family does that: a kernel that gathered
them itself could only take one token at a time, since a tile of rows by a vector of positions is
read element by element. So :func:`split_qkv_rmsnorm_rope` is the operator for all.

vLLM 0.27.1 has no layer for this work and so no class to put in its place: its attention modules
split, norm and rotate one after the other, and models of this stack call these operators.
"""

from __future__ import annotations

from typing import NamedTuple

import torch

from ascend_ops_core.errors import InvalidInputError
from ascend_ops_core.ops.linearnorm.checks import (
    check_layout,
    check_positions,
    check_table,
    check_vectors,
)
from ascend_ops_core.registry import declare

__all__ = [
    "SplitQkv",
    "split_qkv_rmsnorm_mrope",
    "split_qkv_rmsnorm_rope",
    "split_qkv_tp_apply",
    "split_qkv_tp_variance",
]


class SplitQkv(NamedTuple):
    """The parts of a fused projection, each contiguous.

    Attributes:
        query: ``[T, Hq * D]``, normed and rotated.
        key: ``[T, Hkv * D]``, normed and rotated.
        value: ``[T, Hkv * D]``, as it came.
        gate: ``[T, Hq * D]``, as it came; no columns if there is no gate.
    """

    query: torch.Tensor
    key: torch.Tensor
    value: torch.Tensor
    gate: torch.Tensor


def split_qkv_rmsnorm_rope(
    qkv: torch.Tensor,
    cos_sin_cache: torch.Tensor,
    positions: torch.Tensor,
    q_heads: int,
    kv_heads: int,
    head_dim: int,
    *,
    eps: float,
    q_weight: torch.Tensor | None = None,
    k_weight: torch.Tensor | None = None,
    q_bias: torch.Tensor | None = None,
    k_bias: torch.Tensor | None = None,
    gated: bool = False,
) -> SplitQkv:
    """Split, RMS norm of each head of query and key, NeoX rotation of its first ``R`` channels.

    Args:
        qkv: ``[T, (Hq + 2 * Hkv) * D]``, float32, bfloat16 or float16; ``T`` may be 0 and rows may
            be strided. With ``gated`` each query head comes with its gate, ``[query, gate]``, so
            that there are ``2 * Hq`` heads before the keys (Qwen3-Next).
        cos_sin_cache: ``[P, R]`` of any float dtype, cosines in the first half of a row and sines
            in the second, ``R <= D``.
        positions: ``[T]`` int32 or int64, below ``P``. On a CPU this is checked; elsewhere the
            rotated channels of a token outside become NaN, and nothing outside is read.
        q_heads: ``Hq``.
        kv_heads: ``Hkv``.
        head_dim: ``D``, even.
        eps: added to the mean square.
        q_weight: ``[D]`` of any float dtype, or None for no weight; likewise ``k_weight``.
        k_weight: see ``q_weight``.
        q_bias: ``[D]``, added after the weight, or None; likewise ``k_bias``.
        k_bias: see ``q_bias``.
        gated: see ``qkv``.

    Returns:
        Query, key, value and gate in ``qkv.dtype``; computed in float32 and rounded once.

    Raises:
        InvalidInputError: shapes, dtypes or positions that do not fit.

    Source: Qwen3's attention (q_norm and k_norm before the rotation).
    """
    check_layout(qkv, q_heads, kv_heads, head_dim, gated)
    check_table(cos_sin_cache, head_dim)
    check_vectors(head_dim, q_weight=q_weight, k_weight=k_weight, q_bias=q_bias, k_bias=k_bias)
    check_positions(positions, (qkv.shape[0],), cos_sin_cache.shape[0])
    return SplitQkv(
        *_ROPE(
            qkv,
            cos_sin_cache,
            positions,
            q_weight,
            k_weight,
            q_bias,
            k_bias,
            q_heads,
            kv_heads,
            head_dim,
            eps,
            gated,
        )
    )


def split_qkv_rmsnorm_mrope(
    qkv: torch.Tensor,
    cos_sin_cache: torch.Tensor,
    positions: torch.Tensor,
    sections: list[int],
    q_heads: int,
    kv_heads: int,
    head_dim: int,
    *,
    eps: float,
    interleaved: bool,
    q_weight: torch.Tensor | None = None,
    k_weight: torch.Tensor | None = None,
    q_bias: torch.Tensor | None = None,
    k_bias: torch.Tensor | None = None,
    gated: bool = False,
) -> SplitQkv:
    """:func:`split_qkv_rmsnorm_rope` with positions in time, height and width (Qwen-VL's mRoPE).

    Each of the ``R / 2`` rotated pairs turns by one of the three positions. In order of
    ``sections``: the first ``sections[0]`` pairs by time, the next by height, the rest by width
    (Qwen2-VL). Interleaved: pair ``3 i + 1`` by height for ``i < sections[1]``, pair ``3 i + 2`` by
    width for ``i < sections[2]``, all others by time (Qwen3-VL).

    Args:
        qkv: see :func:`split_qkv_rmsnorm_rope`; so are all arguments that are not named here.
        cos_sin_cache: see there.
        positions: ``[3, T]`` int32 or int64.
        sections: three numbers of pairs with the sum ``R / 2``.
        q_heads: see there.
        kv_heads: see there.
        head_dim: see there.
        eps: see there.
        interleaved: how pairs are dealt out.
        q_weight: see there.
        k_weight: see there.
        q_bias: see there.
        k_bias: see there.
        gated: see there.

    Returns:
        As :func:`split_qkv_rmsnorm_rope`.

    Raises:
        InvalidInputError: as there, or sections that do not fit.

    Source: transformers' Qwen2-VL and Qwen3-VL text rotary embeddings.
    """
    check_layout(qkv, q_heads, kv_heads, head_dim, gated)
    check_table(cos_sin_cache, head_dim)
    check_vectors(head_dim, q_weight=q_weight, k_weight=k_weight, q_bias=q_bias, k_bias=k_bias)
    check_positions(positions, (3, qkv.shape[0]), cos_sin_cache.shape[0])
    pairs = cos_sin_cache.shape[1] // 2
    fits = len(sections) == 3 and min(sections) >= 0 and sum(sections) == pairs
    if not fits or (interleaved and 3 * max(sections[1:]) > pairs):
        raise InvalidInputError(
            f"sections {list(sections)}",
            f"three counts of the {pairs} rotated pairs, interleaved a third of them at most",
            "Take mrope_section of the model's configuration.",
        )
    return SplitQkv(
        *_MROPE(
            qkv,
            cos_sin_cache,
            positions,
            q_weight,
            k_weight,
            q_bias,
            k_bias,
            list(sections),
            interleaved,
            q_heads,
            kv_heads,
            head_dim,
            eps,
            gated,
        )
    )


def split_qkv_tp_variance(
    qkv: torch.Tensor, q_heads: int, kv_heads: int, head_dim: int, *, kv_replicas: int = 1
) -> torch.Tensor:
    """First stage of a norm over the whole query and key under tensor parallelism.

    MiniMax-M3 norms query and key over all heads at once, of which a rank has some. The results of
    all ranks are summed by the caller (one all-reduce of ``2 * T`` numbers) and given to
    :func:`split_qkv_tp_apply`.

    Args:
        qkv: ``[T, (Hq + 2 * Hkv) * D]`` of this rank, float32, bfloat16 or float16; ``T`` may be 0.
        q_heads: query heads of this rank, 0 or more: ranks need not have equally many.
        kv_heads: key-value heads of this rank.
        head_dim: ``D``, even.
        kv_replicas: ranks that hold the same key heads as this one, itself included; each of them
            contributes that part of their sum, so that they count once.

    Returns:
        ``[2, T]`` float32: sums of squares of the query, and of the key.

    Raises:
        InvalidInputError: shapes or dtypes that do not fit.

    Source: MiniMax-M3's per-layer QK norm.
    """
    check_layout(qkv, q_heads, kv_heads, head_dim, False)
    if kv_replicas < 1:
        raise InvalidInputError(
            f"kv_replicas={kv_replicas}", "a rank itself counts", "Pass 1 without replication."
        )
    sums: torch.Tensor = _TP_VARIANCE(qkv, q_heads, kv_heads, head_dim, kv_replicas)
    return sums


def split_qkv_tp_apply(
    qkv: torch.Tensor,
    sums: torch.Tensor,
    cos_sin_cache: torch.Tensor,
    positions: torch.Tensor,
    q_heads: int,
    kv_heads: int,
    head_dim: int,
    *,
    total_q_heads: int,
    total_kv_heads: int,
    eps: float,
    q_weight: torch.Tensor,
    k_weight: torch.Tensor,
) -> SplitQkv:
    """Second stage: RMS norm over the query and key of all ranks, then rotation.

    Args:
        qkv: as in :func:`split_qkv_tp_variance`.
        sums: ``[2, T]`` float32, its results summed over all ranks.
        cos_sin_cache: see :func:`split_qkv_rmsnorm_rope`.
        positions: see there.
        q_heads: query heads of this rank.
        kv_heads: key-value heads of this rank.
        head_dim: ``D``, even.
        total_q_heads: different query heads of all ranks.
        total_kv_heads: different key-value heads of all ranks.
        eps: added to the mean square.
        q_weight: ``[Hq * D]``, the part of this rank, any float dtype.
        k_weight: ``[Hkv * D]``, likewise.

    Returns:
        As :func:`split_qkv_rmsnorm_rope`, without gate.

    Raises:
        InvalidInputError: shapes, dtypes or positions that do not fit, or totals below a rank's.
    """
    check_layout(qkv, q_heads, kv_heads, head_dim, False)
    check_table(cos_sin_cache, head_dim)
    check_vectors(q_heads * head_dim, q_weight=q_weight)
    check_vectors(kv_heads * head_dim, k_weight=k_weight)
    check_positions(positions, (qkv.shape[0],), cos_sin_cache.shape[0])
    if sums.dtype != torch.float32 or tuple(sums.shape) != (2, qkv.shape[0]):
        raise InvalidInputError(
            f"sums {sums.dtype} {tuple(sums.shape)}",
            f"float32 of shape {(2, qkv.shape[0])}",
            "Sum the results of split_qkv_tp_variance over the ranks.",
        )
    if total_q_heads < q_heads or total_kv_heads < kv_heads:
        raise InvalidInputError(
            f"{total_q_heads} query and {total_kv_heads} key heads in total",
            f"this rank alone has {q_heads} and {kv_heads}",
            "Count whole heads over all ranks, replicas once.",
        )
    return SplitQkv(
        *_TP_APPLY(
            qkv,
            sums,
            cos_sin_cache,
            positions,
            q_weight,
            k_weight,
            q_heads,
            kv_heads,
            head_dim,
            total_q_heads,
            total_kv_heads,
            eps,
        )
    )


def _empty_parts(
    qkv: torch.Tensor, q_heads: int, kv_heads: int, head_dim: int, gated: bool
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    widths = (q_heads, kv_heads, kv_heads, q_heads if gated else 0)
    query, key, value, gate = (
        torch.empty(qkv.shape[0], heads * head_dim, dtype=qkv.dtype, device=qkv.device)
        for heads in widths
    )
    return query, key, value, gate


_ROPE = declare(
    __name__,
    "split_qkv_rmsnorm_rope(Tensor qkv, Tensor cos_sin_cache, Tensor positions, "
    "Tensor? q_weight, Tensor? k_weight, Tensor? q_bias, Tensor? k_bias, int q_heads, "
    "int kv_heads, int head_dim, float eps, bool gated) -> (Tensor, Tensor, Tensor, Tensor)",
    npu=("triton",),
    fake=lambda qkv, table, positions, qw, kw, qb, kb, q_heads, kv_heads, head_dim, eps, gated: (
        _empty_parts(qkv, q_heads, kv_heads, head_dim, gated)
    ),
)

_MROPE = declare(
    __name__,
    "split_qkv_rmsnorm_mrope(Tensor qkv, Tensor cos_sin_cache, Tensor positions, "
    "Tensor? q_weight, Tensor? k_weight, Tensor? q_bias, Tensor? k_bias, int[] sections, "
    "bool interleaved, int q_heads, int kv_heads, int head_dim, float eps, bool gated) "
    "-> (Tensor, Tensor, Tensor, Tensor)",
    npu=("triton",),
    fake=lambda qkv, table, positions, qw, kw, qb, kb, dealt, woven, q, kv, dim, eps, gated: (
        _empty_parts(qkv, q, kv, dim, gated)
    ),
)

_TP_VARIANCE = declare(
    __name__,
    "split_qkv_tp_variance(Tensor qkv, int q_heads, int kv_heads, int head_dim, int kv_replicas) "
    "-> Tensor",
    npu=("triton",),
    fake=lambda qkv, q_heads, kv_heads, head_dim, kv_replicas: torch.empty(
        2, qkv.shape[0], dtype=torch.float32, device=qkv.device
    ),
)

_TP_APPLY = declare(
    __name__,
    "split_qkv_tp_apply(Tensor qkv, Tensor sums, Tensor cos_sin_cache, Tensor positions, "
    "Tensor q_weight, Tensor k_weight, int q_heads, int kv_heads, int head_dim, "
    "int total_q_heads, int total_kv_heads, float eps) -> (Tensor, Tensor, Tensor, Tensor)",
    npu=("triton",),
    fake=lambda qkv, sums, table, positions, qw, kw, q_heads, kv_heads, head_dim, tq, tkv, eps: (
        _empty_parts(qkv, q_heads, kv_heads, head_dim, False)
    ),
)
