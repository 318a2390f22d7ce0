"""Absorbed MLA over selected rows, with what is needed to merge results over parts of a context.

:mod:`ascend_attention.ops.sparse_mla` for ranks that share a context: a query names rows of its
request that lie on this rank, and may have none here.
"""

from __future__ import annotations

import torch
from ascend_ops_core.checks import FLOATS, INDICES, require_dtype, require_shape
from ascend_ops_core.registry import declare

__all__ = ["sparse_mla_states"]


def sparse_mla_states(
    query_latent: torch.Tensor,
    query_rope: torch.Tensor,
    latent_cache: torch.Tensor,
    rope_cache: torch.Tensor,
    selected: torch.Tensor,
    block_table: torch.Tensor,
    request: torch.Tensor,
    scale: float,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Attend to the selected rows of each query, and give the softmax's denominators.

    Args:
        query_latent: ``[T, H, L]``, float32, bfloat16 or float16; ``T`` may be 0.
        query_rope: ``[T, H, R]`` of the same dtype.
        latent_cache: ``[B, P, L]`` of the same dtype, any strides of blocks and rows.
        rope_cache: ``[B, P, R]`` of the same dtype, any strides of blocks and rows.
        selected: ``[T, K]`` int32 rows within the query's request, each at most once; -1 marks
            unused places, which come last.
        block_table: ``[Q, nb]`` int32, blocks of every request in order.
        request: ``[T]`` int32 or int64, the request of every query.
        scale: factor on the dot products.

    Returns:
        ``[T, H, L]`` in ``query_latent.dtype``, and ``[T, H]`` float32, the natural logarithm of
        the softmax's denominator; softmax and sums in float32. A query without a row gives zeros
        and ``-inf``.

    Raises:
        InvalidInputError: shapes or dtypes that do not fit each other.

    Source: see :func:`ascend_attention.ops.sparse_mla.sparse_mla`.
    """
    require_dtype("query_latent", query_latent, FLOATS)
    require_shape("query_latent", query_latent, None, None, None)
    require_shape("query_rope", query_rope, *query_latent.shape[:2], None)
    require_shape("latent_cache", latent_cache, None, None, query_latent.shape[2])
    require_shape("rope_cache", rope_cache, *latent_cache.shape[:2], query_rope.shape[2])
    for name, value in (
        ("query_rope", query_rope),
        ("latent_cache", latent_cache),
        ("rope_cache", rope_cache),
    ):
        require_dtype(name, value, (query_latent.dtype,))
    require_shape("selected", selected, query_latent.shape[0], None)
    require_shape("block_table", block_table, None, None)
    for name, value in (("selected", selected), ("block_table", block_table)):
        require_dtype(name, value, (torch.int32,))
    require_shape("request", request, query_latent.shape[0])
    require_dtype("request", request, INDICES)
    result: tuple[torch.Tensor, torch.Tensor] = _SPARSE_MLA_STATES(
        query_latent,
        query_rope,
        latent_cache,
        rope_cache,
        selected,
        block_table,
        request,
        scale,
    )
    return result


_SPARSE_MLA_STATES = declare(
    __name__,
    "sparse_mla_states(Tensor query_latent, Tensor query_rope, Tensor latent_cache, "
    "Tensor rope_cache, Tensor selected, Tensor block_table, Tensor request, float scale) "
    "-> (Tensor, Tensor)",
    npu=("triton", "torch"),
    fake=lambda query, *rest: (
        query.new_empty(query.shape),
        query.new_empty(query.shape[:2], dtype=torch.float32),
    ),
)
