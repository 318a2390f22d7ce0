"""The lightning indexer (DeepSeek-V4 paper equations 13 to 17).

Every query scores all compressed entries that it may see and keeps the best ``top_k``. Keys may
be stored in eight bits with a scale each; queries are then quantised alike.
"""

from __future__ import annotations

import torch
from ascend_ops_core.checks import (
    FLOATS,
    INDICES,
    require_at_least,
    require_dtype,
    require_shape,
)
from ascend_ops_core.cpu_kernels import CpuKernels
from ascend_ops_core.errors import InvalidInputError
from ascend_ops_core.ops.quantization import per_token_head_quantize
from ascend_ops_core.registry import declare

from ascend_attention.ops.indexer import batched, per_request
from ascend_attention.step import StepLayout

_cpu = CpuKernels("ascend_attention.ops.indexer.cpu")

EIGHT_BITS = (torch.int8, torch.float8_e4m3fn)
"""Dtypes of quantised keys; float8_e4m3fn exists on A5 and CPUs."""

SCALES = (torch.float32, torch.float16)
"""Dtypes of their scales."""

__all__ = ["indexer_scores", "quantize_index_rows", "select_entries"]


def select_entries(
    query: torch.Tensor,
    head_weights: torch.Tensor,
    key_cache: torch.Tensor,
    block_table: torch.Tensor,
    layout: StepLayout,
    ratio: int,
    top_k: int,
    *,
    key_scale: torch.Tensor | None = None,
    most_entries: int | None = None,
) -> torch.Tensor:
    """Entries that each token attends to: those with the best :func:`indexer_scores`.

    Args:
        query: ``[T, H, D]``, rotated.
        head_weights: ``[T, H]`` float32, scale factors included.
        key_cache: ``[B, P, D]`` paged indexer keys.
        block_table: ``[R, nb]``, wide enough for the longest request.
        layout: the step.
        ratio: tokens per entry.
        top_k: most entries that a token may keep, at least 1.
        key_scale: ``[B, P]``, given with keys of eight bits.
        most_entries: a bound that the host knows for the entries of the longest request; what
            lies beyond it is not selected. It sets the width of the scores on an NPU, where
            asking for the real length would stop the device. Left out, it is what a row of
            ``block_table`` can address. A CPU does not need it.

    Returns:
        ``[T, N]`` int64 entry numbers within the token's request, ``N`` at most ``top_k`` on a
        CPU and ``top_k`` elsewhere; -1 marks unused places, which come last. A token that sees at
        most ``top_k`` entries keeps all of them. Between equal scores either may be chosen.

    Raises:
        InvalidInputError: another shape or dtype, keys of eight bits without scales, or a bound
            beyond the table.
    """
    require_at_least("top_k", top_k, 1)
    visible = layout.visible_entries(ratio)
    if query.is_cpu and key_scale is None and not torch.compiler.is_compiling():
        # Every layer calls this in every step, and the checks cost as much as the rest of the call.
        if not _fits(query, head_weights, key_cache, block_table, visible):
            _check(query, head_weights, key_cache, None, block_table, layout.request, visible)
        return _select_on_cpu(
            query, head_weights, key_cache, block_table, layout, visible, ratio, top_k
        )
    if most_entries is None:
        most_entries = block_table.shape[1] * key_cache.shape[1]
    query, head_weights = _like_keys(query, head_weights, key_cache)
    _check(query, head_weights, key_cache, key_scale, block_table, layout.request, visible)
    _check_width("most_entries", most_entries, block_table, key_cache)
    result: torch.Tensor = _SELECT_ENTRIES(
        query,
        head_weights,
        key_cache,
        key_scale,
        block_table,
        layout.request,
        visible,
        top_k,
        most_entries,
    )
    return result


def indexer_scores(
    query: torch.Tensor,
    head_weights: torch.Tensor,
    key_cache: torch.Tensor,
    block_table: torch.Tensor,
    request: torch.Tensor,
    visible: torch.Tensor,
    width: int,
    *,
    key_scale: torch.Tensor | None = None,
) -> torch.Tensor:
    """Score of every entry that each token sees.

    The score of entry ``s`` for token ``t`` is
    ``sum_h head_weights[t, h] * relu(query[t, h] . key[s])``, times the key's scale if keys have
    scales. It is accumulated in float32 (products of int8 in int32).

    Args:
        query: ``[T, H, D]``, the dtype of the keys; ``T`` may be 0. With keys of eight bits a
            float query is quantised here, one scale for each token and head, which goes to the
            head weights.
        head_weights: ``[T, H]`` float32, scale factors included.
        key_cache: ``[B, P, D]`` paged keys, float32, bfloat16, float16, int8 or (A5, CPU)
            float8_e4m3fn; any strides of blocks and rows.
        block_table: ``[R, nb]`` int32 or int64, blocks of every request in order.
        request: ``[T]`` int32 or int64, the request of every token; tokens of a request lie
            together.
        visible: ``[T]`` int32 or int64, entries that each token sees, at most ``width``. Padding
            tokens see 0 or less; their request is not looked up.
        width: columns of the result, at most ``nb * P``.
        key_scale: ``[B, P]`` float32 or float16, given with keys of eight bits.

    Returns:
        ``[T, width]`` float32, -inf for entries that are not visible; their keys are not read.

    Raises:
        InvalidInputError: another shape or dtype, keys of eight bits without scales, or more
            columns than the table addresses.

    Source: DeepSeek-V4 paper, equation 16.
    """
    query, head_weights = _like_keys(query, head_weights, key_cache)
    _check(query, head_weights, key_cache, key_scale, block_table, request, visible)
    _check_width("width", width, block_table, key_cache)
    result: torch.Tensor = _INDEXER_SCORES(
        query, head_weights, key_cache, key_scale, block_table, request, visible, width
    )
    return result


def quantize_index_rows(
    key_cache: torch.Tensor,
    scale_cache: torch.Tensor,
    rows: torch.Tensor,
    block: torch.Tensor,
    offset: torch.Tensor,
) -> None:
    """Quantise indexer keys, one scale for each, and write both into their caches.

    Values and scales are those of :func:`ascend_ops_core.ops.quantization.dynamic_quantize`; the
    scale is rounded to its cache's dtype afterwards.

    Args:
        key_cache: ``[B, P, D]`` int8 or (A5, CPU) float8_e4m3fn, any strides of blocks and rows;
            written.
        scale_cache: ``[B, P]`` float32 or float16, any strides; written.
        rows: ``[N, D]`` float32, bfloat16 or float16; ``N`` may be 0.
        block: ``[N]`` int32 or int64; a negative block is padding, of which nothing is written.
        offset: ``[N]`` of ``block``'s dtype, the row within the block.

    Raises:
        InvalidInputError: another shape or dtype; nothing was written then.
    """
    require_shape("key_cache", key_cache, None, None, None)
    require_dtype("key_cache", key_cache, EIGHT_BITS)
    require_shape("scale_cache", scale_cache, *key_cache.shape[:2])
    require_dtype("scale_cache", scale_cache, SCALES)
    require_shape("rows", rows, None, key_cache.shape[2])
    require_dtype("rows", rows, FLOATS)
    require_shape("block", block, rows.shape[0])
    require_dtype("block", block, INDICES)
    require_shape("offset", offset, rows.shape[0])
    require_dtype("offset", offset, (block.dtype,))
    if key_cache.shape[2] == 0:
        raise InvalidInputError("keys of width 0", "a key has at least 1 value", "Check shapes.")
    _QUANTIZE_INDEX_ROWS(key_cache, scale_cache, rows, block, offset)


def _select_on_cpu(
    query: torch.Tensor,
    head_weights: torch.Tensor,
    key_cache: torch.Tensor,
    block_table: torch.Tensor,
    layout: StepLayout,
    visible: torch.Tensor,
    ratio: int,
    top_k: int,
) -> torch.Tensor:
    longest = int(visible.max()) if visible.numel() else 0
    kernels = _cpu.usable(query, head_weights, key_cache)
    if longest > top_k and kernels is not None and kernels.supports(query, head_weights, key_cache):
        result: torch.Tensor = kernels.select_entries(
            query, head_weights, key_cache, block_table, layout.request, visible, top_k
        )
        return result
    if longest > top_k and batched.supports(query, layout, longest):
        table = block_table[: len(layout.seq_lens)]
        return batched.select_entries(
            query, head_weights, key_cache, table, visible, longest, top_k
        )
    return per_request.select_entries(
        query, head_weights, key_cache, block_table, layout, ratio, top_k
    )


def _like_keys(
    query: torch.Tensor, head_weights: torch.Tensor, key_cache: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Queries in the dtype of keys of eight bits, and head weights that carry their scales."""
    if key_cache.dtype not in EIGHT_BITS or query.dtype not in FLOATS:
        return query, head_weights
    require_shape("query", query, None, None, None)
    values, scale = per_token_head_quantize(query, key_cache.dtype)
    require_shape("head_weights", head_weights, *scale.shape)
    return values, head_weights * scale


def _fits(
    query: torch.Tensor,
    head_weights: torch.Tensor,
    key_cache: torch.Tensor,
    block_table: torch.Tensor,
    visible: torch.Tensor,
) -> bool:
    return (
        query.dim() == key_cache.dim() == 3
        and block_table.dim() == 2
        and query.shape[2] == key_cache.shape[2]
        and head_weights.shape == query.shape[:2]
        and visible.shape[0] == query.shape[0]
        and query.dtype == key_cache.dtype
        and query.dtype in FLOATS
        and head_weights.dtype == torch.float32
        and block_table.dtype in INDICES
    )


def _check(
    query: torch.Tensor,
    head_weights: torch.Tensor,
    key_cache: torch.Tensor,
    key_scale: torch.Tensor | None,
    block_table: torch.Tensor,
    request: torch.Tensor,
    visible: torch.Tensor,
) -> None:
    require_shape("key_cache", key_cache, None, None, None)
    require_dtype("key_cache", key_cache, (*FLOATS, *EIGHT_BITS))
    require_shape("query", query, None, None, key_cache.shape[2])
    require_dtype("query", query, (key_cache.dtype,))
    require_shape("head_weights", head_weights, *query.shape[:2])
    require_dtype("head_weights", head_weights, (torch.float32,))
    require_shape("block_table", block_table, None, None)
    require_dtype("block_table", block_table, INDICES)
    for name, value in (("request", request), ("visible", visible)):
        require_shape(name, value, query.shape[0])
        require_dtype(name, value, INDICES)
    if (key_scale is not None) != (key_cache.dtype in EIGHT_BITS):
        raise InvalidInputError(
            f"keys of {key_cache.dtype} {'with' if key_scale is not None else 'without'} scales",
            "keys of int8 and float8_e4m3fn have scales, and no others",
            "Pass key_scale with quantised keys only.",
        )
    if key_scale is not None:
        require_shape("key_scale", key_scale, *key_cache.shape[:2])
        require_dtype("key_scale", key_scale, SCALES)


def _check_width(name: str, width: int, block_table: torch.Tensor, key_cache: torch.Tensor) -> None:
    capacity = block_table.shape[1] * key_cache.shape[1]
    if not 0 <= width <= capacity:
        raise InvalidInputError(
            f"{name}={width}",
            f"{block_table.shape[1]} blocks of {key_cache.shape[1]} rows hold 0 to {capacity}",
            "Pass the entries of the longest request, or a wider table.",
        )


_INDEXER_SCORES = declare(
    __name__,
    "indexer_scores(Tensor query, Tensor head_weights, Tensor key_cache, Tensor? key_scale, "
    "Tensor block_table, Tensor request, Tensor visible, int width) -> Tensor",
    npu=("triton",),
    fake=lambda query, head_weights, key_cache, key_scale, table, request, visible, width: (
        torch.empty((query.shape[0], width), dtype=torch.float32, device=query.device)
    ),
)

_SELECT_ENTRIES = declare(
    __name__,
    "select_entries(Tensor query, Tensor head_weights, Tensor key_cache, Tensor? key_scale, "
    "Tensor block_table, Tensor request, Tensor visible, int top_k, int most_entries) -> Tensor",
    npu=("triton",),
    fake=lambda query, head_weights, key_cache, key_scale, table, request, visible, top_k, most: (
        torch.empty((query.shape[0], top_k), dtype=torch.int64, device=query.device)
    ),
)

_QUANTIZE_INDEX_ROWS = declare(
    __name__,
    "quantize_index_rows(Tensor(a!) key_cache, Tensor(b!) scale_cache, Tensor rows, Tensor block, "
    "Tensor offset) -> ()",
    npu=("triton",),
    fake=lambda *args: None,
)
