"""The lightning indexer over tokens (DeepSeek-V3.2, GLM-5): which tokens a query attends to.

Every query scores the keys of all tokens up to its own and keeps the best ``top_k``. Keys may be
stored in eight bits with a scale each; queries are then quantised alike.
"""

from __future__ import annotations

import torch
from ascend_ops_core.checks import (
    FLOATS,
    require_at_least,
    require_dtype,
    require_shape,
)
from ascend_ops_core.cpu_kernels import CpuKernels
from ascend_ops_core.errors import InvalidInputError
from ascend_ops_core.ops.quantization import per_token_head_quantize
from ascend_ops_core.registry import declare

from ascend_attention.ops.indexer import EIGHT_BITS, SCALES
from ascend_attention.ops.token_indexer import per_request, reference
from ascend_attention.ops.token_indexer.batch import owners

_cpu = CpuKernels("ascend_attention.ops.token_indexer.cpu")

__all__ = ["owners", "select_tokens"]


def select_tokens(
    query: torch.Tensor,
    head_weights: torch.Tensor,
    key_cache: torch.Tensor,
    block_table: torch.Tensor,
    query_ends: torch.Tensor,
    seq_lens: torch.Tensor,
    top_k: int,
    *,
    key_scale: torch.Tensor | None = None,
    most_tokens: int | None = None,
) -> torch.Tensor:
    """Tokens that each query attends to: those with the best scores, among equals the earlier ones.

    The score of token ``s`` for query ``t`` is
    ``sum_h head_weights[t, h] * relu(query[t, h] . key[s])``, times the key's scale if keys have
    scales, in float32. A query sees the tokens up to its own. One that sees at most ``top_k``
    keeps all of them, whatever their scores. torch_npu's documentation states no order among
    equal scores.

    Args:
        query: ``[T, H, D]``, rotated, float32, bfloat16 or float16 as the keys; ``T`` may be 0.
            With keys of eight bits it is quantised here, one scale for each query and head.
        head_weights: ``[T, H]`` float32, scale factors included.
        key_cache: ``[B, P, D]`` paged keys of the query's dtype, int8 or (A5, CPU)
            float8_e4m3fn; any strides of blocks and rows.
        block_table: ``[R, nb]`` int32, blocks of every request in order.
        query_ends: ``[R]`` int32, queries of the request and of all before it. Queries behind the
            last of them are padding.
        seq_lens: ``[R]`` int32, context length of every request, its queries included; 0 or less
            for padding.
        top_k: most tokens that a query keeps, at least 1.
        key_scale: ``[B, P]`` float32 or float16, given with keys of eight bits.
        most_tokens: a bound that the host knows for the longest context. It sets the width of
            the scores on an NPU, where asking for the real length would stop the device. Left
            out, it is what a row of ``block_table`` can address.

    Returns:
        ``[T, top_k]`` int32 token numbers within the query's request in no particular order; -1
        marks unused places, which come last.

    Raises:
        InvalidInputError: another shape or dtype, keys of eight bits without scales, or a bound
            beyond the table.

    Source: DeepSeek-V3.2 report, equations 1 and 2.
    """
    require_at_least("top_k", top_k, 1)
    _check(query, head_weights, key_cache, key_scale, block_table, query_ends, seq_lens)
    reach = block_table.shape[1] * key_cache.shape[1]
    if most_tokens is None:
        most_tokens = reach
    if not 0 <= most_tokens <= reach:
        raise InvalidInputError(
            f"most_tokens={most_tokens}",
            f"{block_table.shape[1]} blocks of {key_cache.shape[1]} rows hold 0 to {reach}",
            "Pass the longest context, or a wider table.",
        )
    query_scale = None
    if key_scale is not None:
        query, query_scale = per_token_head_quantize(query, key_cache.dtype)
    result: torch.Tensor = _SELECT_TOKENS(
        query,
        head_weights,
        key_cache,
        query_scale,
        key_scale,
        block_table,
        query_ends,
        seq_lens,
        top_k,
        most_tokens,
    )
    return result


def _check(
    query: torch.Tensor,
    head_weights: torch.Tensor,
    key_cache: torch.Tensor,
    key_scale: torch.Tensor | None,
    block_table: torch.Tensor,
    query_ends: torch.Tensor,
    seq_lens: torch.Tensor,
) -> None:
    require_shape("key_cache", key_cache, None, None, None)
    require_dtype("key_cache", key_cache, (*FLOATS, *EIGHT_BITS))
    eight = key_cache.dtype in EIGHT_BITS
    require_shape("query", query, None, None, key_cache.shape[2])
    require_dtype("query", query, FLOATS if eight else (key_cache.dtype,))
    require_shape("head_weights", head_weights, *query.shape[:2])
    require_dtype("head_weights", head_weights, (torch.float32,))
    require_shape("block_table", block_table, None, None)
    for name, value in (("query_ends", query_ends), ("seq_lens", seq_lens)):
        require_shape(name, value, block_table.shape[0])
        require_dtype(name, value, (torch.int32,))
    require_dtype("block_table", block_table, (torch.int32,))
    if (key_scale is not None) != eight:
        raise InvalidInputError(
            f"keys of {key_cache.dtype} {'with' if key_scale is not None else 'without'} scales",
            "keys of int8 and float8_e4m3fn have scales, and no others",
            "Pass key_scale with quantised keys only.",
        )
    if key_scale is not None:
        require_shape("key_scale", key_scale, *key_cache.shape[:2])
        require_dtype("key_scale", key_scale, SCALES)


def _select_tokens_cpu(
    query: torch.Tensor,
    head_weights: torch.Tensor,
    key_cache: torch.Tensor,
    query_scale: torch.Tensor | None,
    key_scale: torch.Tensor | None,
    block_table: torch.Tensor,
    query_ends: torch.Tensor,
    seq_lens: torch.Tensor,
    top_k: int,
    most_tokens: int,
) -> torch.Tensor:
    if key_scale is not None:
        return reference.select_tokens(
            query,
            head_weights,
            key_cache,
            query_scale,
            key_scale,
            block_table,
            query_ends,
            seq_lens,
            top_k,
            most_tokens,
        )
    kernels = _cpu.usable(query, head_weights, key_cache)
    run = per_request.select_tokens
    if kernels is not None and kernels.supports(query, head_weights, key_cache):
        run = kernels.select_tokens
    return run(query, head_weights, key_cache, block_table, query_ends, seq_lens, top_k)


_SELECT_TOKENS = declare(
    __name__,
    "select_tokens(Tensor query, Tensor head_weights, Tensor key_cache, Tensor? query_scale, "
    "Tensor? key_scale, Tensor block_table, Tensor query_ends, Tensor seq_lens, int top_k, "
    "int most_tokens) -> Tensor",
    npu=("torch_npu", "triton"),
    fake=lambda query, weights, keys, q_scale, k_scale, table, ends, lens, top_k, most: torch.empty(
        (query.shape[0], top_k), dtype=torch.int32, device=query.device
    ),
    cpu=_select_tokens_cpu,
)
