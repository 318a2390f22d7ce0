"""Absorbed MLA over selected rows whose latents are stored in eight bits, with the softmax's sums.

:mod:`ascend_attention.ops.sparse_mla_states` over the records of
:mod:`ascend_attention.ops.quantized_mla`, for ranks that share a context.
"""

from __future__ import annotations

import torch
from ascend_ops_core.checks import INDICES, require_dtype, require_shape
from ascend_ops_core.registry import declare

from ascend_attention.ops.quantized_mla.layout import check_cache

__all__ = ["quantized_mla_states"]


def quantized_mla_states(
    query_latent: torch.Tensor,
    query_rope: torch.Tensor,
    cache: torch.Tensor,
    selected: torch.Tensor,
    block_table: torch.Tensor,
    request: torch.Tensor,
    scale: float,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Attend to the selected quantised rows of each query, and give the softmax's denominators.

    Args:
        query_latent: ``[T, H, L]``, float32 or bfloat16; ``T`` may be 0.
        query_rope: ``[T, H, R]`` of the same dtype.
        cache: ``[B, P, row_bytes(L, R)]`` int8, strides that are multiples of 4.
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
        InvalidInputError: shapes, strides or dtypes that do not fit each other.
    """
    require_dtype("query_latent", query_latent, (torch.float32, torch.bfloat16))
    require_shape("query_latent", query_latent, None, None, None)
    require_dtype("query_rope", query_rope, (query_latent.dtype,))
    require_shape("query_rope", query_rope, *query_latent.shape[:2], None)
    check_cache(cache, query_latent.shape[2], query_rope.shape[2])
    require_shape("selected", selected, query_latent.shape[0], None)
    require_shape("block_table", block_table, None, None)
    for name, value in (("selected", selected), ("block_table", block_table)):
        require_dtype(name, value, (torch.int32,))
    require_shape("request", request, query_latent.shape[0])
    require_dtype("request", request, INDICES)
    result: tuple[torch.Tensor, torch.Tensor] = _QUANTIZED_MLA_STATES(
        query_latent, query_rope, cache, selected, block_table, request, scale
    )
    return result


_QUANTIZED_MLA_STATES = declare(
    __name__,
    "quantized_mla_states(Tensor query_latent, Tensor query_rope, Tensor cache, Tensor selected, "
    "Tensor block_table, Tensor request, float scale) -> (Tensor, Tensor)",
    npu=("triton", "torch"),
    fake=lambda query, *rest: (
        query.new_empty(query.shape),
        query.new_empty(query.shape[:2], dtype=torch.float32),
    ),
)
