"""Attention of many query heads to fewer key heads over a paged cache (GQA, MHA and MQA).

One call serves prefill, with or without an earlier context, decode, and both in one batch. Grouped
queries are those of GQA (Ainslie et al., 2023), sinks those of gpt-oss: a logit for each head that
takes weight and has no value.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from ascend_ops_core.checks import FLOATS, INDICES, require_dtype, require_shape
from ascend_ops_core.errors import InvalidInputError
from ascend_ops_core.registry import declare

from ascend_attention.ops.paged_attention import reference
from ascend_attention.ops.paged_attention.runs import require_lengths

__all__ = ["paged_attention"]


def paged_attention(
    query: torch.Tensor,
    key_cache: torch.Tensor,
    value_cache: torch.Tensor,
    block_table: torch.Tensor,
    request: torch.Tensor,
    position: torch.Tensor,
    scale: float,
    *,
    sinks: torch.Tensor | None = None,
    window: int | None = None,
    query_ends: Sequence[int] = (),
    seq_lens: Sequence[int] = (),
) -> tuple[torch.Tensor, torch.Tensor]:
    """Attend to the tokens of a token's request up to itself, or to the last ones of them.

    For head ``h`` of token ``t`` at position ``p``, which shares key head ``g = h // (H / K)``:
    ``sum_{p - window < i <= p} w_i value_i[g]`` with
    ``w = softmax(scale * query . key_i[g], sinks[h])`` without the sink's own weight.

    Args:
        query: ``[T, H, D]``, float32, bfloat16 or float16; ``T`` may be 0.
        key_cache: ``[B, P, K, D]`` of the same dtype, any strides; ``K`` divides ``H``.
        value_cache: the same.
        block_table: ``[N, nb]`` int32 or int64, blocks of every request in order.
        request: ``[T]`` int32 or int64, the request of every token.
        position: ``[T]`` int32 or int64, the token's index within its request, whose rows lie in
            the block table; negative for padding.
        scale: factor on the dot products.
        sinks: ``[H]``, any of these dtypes, or None.
        window: tokens that one sees, itself among them; None for all.
        query_ends: ``[N]``, where the tokens of each request end, which then lie in order of the
            requests, those of one request at its last positions, and padding behind all; empty if
            only the device knows. torch_npu's operator needs it.
        seq_lens: ``[N]``, the tokens of each request in the cache; given together with these.

    Returns:
        ``[T, H, D]`` in the query's dtype, accumulated in float32, and ``[T, H]`` float32, the
        natural logarithm of the softmax's denominator. Padding gives zeros and ``-inf``, and reads
        nothing.

    Raises:
        InvalidInputError: shapes or dtypes that do not fit each other, a window below 1, or lengths
            of another number of requests.
    """
    require_dtype("query", query, FLOATS)
    require_shape("query", query, None, None, None)
    tokens, heads, width = query.shape
    require_dtype("key_cache", key_cache, (query.dtype,))
    require_dtype("value_cache", value_cache, (query.dtype,))
    require_shape("key_cache", key_cache, None, None, None, width)
    require_shape("value_cache", value_cache, *key_cache.shape)
    key_heads = key_cache.shape[2]
    if key_heads < 1 or heads % key_heads:
        raise InvalidInputError(
            f"{heads} query heads with {key_heads} key heads",
            "the same number of query heads shares each key head",
            "Check num_attention_heads and num_key_value_heads.",
        )
    require_shape("block_table", block_table, None, None)
    require_dtype("block_table", block_table, INDICES)
    for name, index in (("request", request), ("position", position)):
        require_shape(name, index, tokens)
        require_dtype(name, index, INDICES)
    if sinks is not None:
        require_shape("sinks", sinks, heads)
        require_dtype("sinks", sinks, FLOATS)
    if window is not None and window < 1:
        raise InvalidInputError(
            f"window={window}", "a token sees itself at least", "Pass None for all tokens."
        )
    require_lengths(block_table, query_ends, seq_lens)
    result: tuple[torch.Tensor, torch.Tensor] = _PAGED_ATTENTION(
        query, key_cache, value_cache, block_table, request, position, sinks, scale, window or 0,
        tuple(query_ends), tuple(seq_lens),
    )  # fmt: skip
    return result


def _fake(query: torch.Tensor, *rest: object) -> tuple[torch.Tensor, torch.Tensor]:
    return query.new_empty(query.shape), query.new_empty(query.shape[:2], dtype=torch.float32)


_PAGED_ATTENTION = declare(
    __name__,
    "paged_attention(Tensor query, Tensor key_cache, Tensor value_cache, Tensor block_table, "
    "Tensor request, Tensor position, Tensor? sinks, float scale, int window, int[] query_ends, "
    "int[] seq_lens) -> (Tensor, Tensor)",
    npu=("torch_npu", "triton", "torch"),
    fake=_fake,
    cpu=reference.paged_attention,
)
