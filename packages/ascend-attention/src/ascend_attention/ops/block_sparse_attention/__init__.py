"""Grouped-query attention over selected blocks of paged keys and values (MiniMax-M3).

The query heads that share a key-value head share its selection, so that a block is read once for
all of them.
"""

from __future__ import annotations

import torch
from ascend_ops_core.checks import FLOATS, INDICES, require_at_least, require_dtype, require_shape
from ascend_ops_core.errors import InvalidInputError
from ascend_ops_core.registry import declare

from ascend_attention.ops.block_sparse_attention.on_cpu import block_sparse_attention as _on_cpu

__all__ = ["block_sparse_attention"]


def block_sparse_attention(
    query: torch.Tensor,
    key_cache: torch.Tensor,
    value_cache: torch.Tensor,
    selected: torch.Tensor,
    block_table: torch.Tensor,
    request: torch.Tensor,
    position: torch.Tensor,
    scale: float,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Attend to the tokens of the selected blocks, up to the query's own.

    For head ``h`` of query ``t`` at position ``p``, which shares key-value head
    ``g = h // (H / G)``: ``sum_u softmax_u(scale * query . key[u, g]) value[u, g]`` over the tokens
    ``u <= p`` of its request with ``u // P`` in ``selected[t, g]``.

    Args:
        query: ``[T, H, D]``, float32, bfloat16 or float16; ``T`` may be 0.
        key_cache: ``[B, P, G, D]`` paged keys of the same dtype, any strides; ``H`` is a multiple
            of ``G``. What lies behind a request's last token is not attended to.
        value_cache: ``[B, P, G, D]``, the same.
        selected: ``[T, G, K]`` int32 numbers of blocks within the query's request, each at most
            once; -1 marks unused places, which come last. What stands behind the first -1 is not
            read.
        block_table: ``[R, nb]`` int32, blocks of every request in order.
        request: ``[T]`` int32 or int64, the request of every query.
        position: ``[T]`` int32 or int64, its index within the request; negative for padding.
        scale: factor on the dot products.

    Returns:
        ``[T, H, D]`` in the query's dtype, and ``[T, H]`` float32, the natural logarithm of the
        softmax's denominator, by which results over parts of a selection are merged
        (:func:`ascend_attention.ops.attention_states.merge_attention_states`). Softmax and sums in
        float32. A query without any token, such as padding, gives zeros and -inf.

    Raises:
        InvalidInputError: shapes or dtypes that do not fit each other.
        IndexError: on a CPU, a selected block outside the table.

    Source: MiniMax-M3's block-sparse attention as vLLM has it in
    ``models/minimax_m3/common/ops/sparse_attn.py``.
    """
    require_dtype("query", query, FLOATS)
    require_shape("query", query, None, None, None)
    tokens, heads, width = query.shape
    require_shape("key_cache", key_cache, None, None, None, width)
    require_shape("value_cache", value_cache, *key_cache.shape)
    for name, cache in (("key_cache", key_cache), ("value_cache", value_cache)):
        require_dtype(name, cache, (query.dtype,))
    groups = key_cache.shape[2]
    require_at_least("key-value heads", groups, 1)
    require_at_least("rows of a block", key_cache.shape[1], 1)
    if heads % groups:
        raise InvalidInputError(
            f"{heads} query heads with {groups} key-value heads",
            "every key-value head serves as many query heads",
            "Check the number of heads of this rank.",
        )
    require_dtype("selected", selected, (torch.int32,))
    require_shape("selected", selected, tokens, groups, None)
    require_dtype("block_table", block_table, (torch.int32,))
    require_shape("block_table", block_table, None, None)
    for name, index in (("request", request), ("position", position)):
        require_shape(name, index, tokens)
        require_dtype(name, index, INDICES)
    result: tuple[torch.Tensor, torch.Tensor] = _BLOCK_SPARSE_ATTENTION(
        query, key_cache, value_cache, selected, block_table, request, position, scale
    )
    return result


def _fake(query: torch.Tensor, *rest: object) -> tuple[torch.Tensor, torch.Tensor]:
    return (
        query.new_empty(query.shape),
        query.new_empty(query.shape[:2], dtype=torch.float32),
    )


_BLOCK_SPARSE_ATTENTION = declare(
    __name__,
    "block_sparse_attention(Tensor query, Tensor key_cache, Tensor value_cache, Tensor selected, "
    "Tensor block_table, Tensor request, Tensor position, float scale) -> (Tensor, Tensor)",
    npu=("triton", "torch"),
    fake=_fake,
    cpu=_on_cpu,
)
