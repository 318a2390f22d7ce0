"""MLA over selected tokens whose latents are stored in eight bits.

A row of the cache is a record of bytes, as ``npu_kv_quant_sparse_flash_attention`` reads it: the
latent in int8, the rotated values in bfloat16, and a float32 scale for every 128 values of the
latent; 656 bytes for 512 + 64 values, against 1152 in bfloat16.
"""

from __future__ import annotations

import torch
from ascend_ops_core.checks import FLOATS, INDICES, require_dtype, require_shape
from ascend_ops_core.registry import declare

from ascend_attention.ops.quantized_mla.layout import GROUP, check_cache, row_bytes

__all__ = ["GROUP", "quantize_mla_rows", "quantized_sparse_mla", "row_bytes"]


def quantize_mla_rows(
    cache: torch.Tensor,
    latent: torch.Tensor,
    rope: torch.Tensor,
    block: torch.Tensor,
    offset: torch.Tensor,
) -> None:
    """Quantise latents and write them with their rotated values and scales.

    Values and scales of a group are those of
    :func:`ascend_ops_core.ops.quantization.dynamic_quantize`.

    Args:
        cache: ``[B, P, row_bytes(L, R)]`` int8, strides of blocks and rows that are multiples of 4;
            written.
        latent: ``[N, L]``, float32, bfloat16 or float16; ``N`` may be 0.
        rope: ``[N, R]`` of the same dtype, rounded to bfloat16.
        block: ``[N]`` int32 or int64; a negative block is padding, of which nothing is written.
        offset: ``[N]`` of ``block``'s dtype, the row within the block.

    Raises:
        InvalidInputError: another shape, stride or dtype; nothing was written then.
    """
    require_dtype("latent", latent, FLOATS)
    require_shape("latent", latent, None, None)
    require_dtype("rope", rope, (latent.dtype,))
    require_shape("rope", rope, latent.shape[0], None)
    check_cache(cache, latent.shape[1], rope.shape[1])
    require_shape("block", block, latent.shape[0])
    require_dtype("block", block, INDICES)
    require_shape("offset", offset, latent.shape[0])
    require_dtype("offset", offset, (block.dtype,))
    _QUANTIZE_MLA_ROWS(cache, latent, rope, block, offset)


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
    """:func:`ascend_attention.ops.sparse_mla.sparse_mla` over quantised rows.

    Args:
        query_latent: ``[T, H, L]``, float32 or bfloat16; ``T`` may be 0.
        query_rope: ``[T, H, R]`` of the same dtype.
        cache: ``[B, P, row_bytes(L, R)]`` int8, strides that are multiples of 4.
        selected: ``[T, K]`` int32, as there.
        block_table: ``[Q, nb]`` int32.
        query_ends: ``[Q]`` int32, queries of the request and of all before it.
        seq_lens: ``[Q]`` int32, context length of every request, its queries included.
        scale: factor on the dot products.

    Returns:
        ``[T, H, L]`` in ``query_latent.dtype``; zeros for a query without selected tokens.

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
    require_shape("query_ends", query_ends, block_table.shape[0])
    require_shape("seq_lens", seq_lens, block_table.shape[0])
    for name, value in (
        ("selected", selected),
        ("block_table", block_table),
        ("query_ends", query_ends),
        ("seq_lens", seq_lens),
    ):
        require_dtype(name, value, (torch.int32,))
    result: torch.Tensor = _QUANTIZED_SPARSE_MLA(
        query_latent, query_rope, cache, selected, block_table, query_ends, seq_lens, scale
    )
    return result


_QUANTIZE_MLA_ROWS = declare(
    __name__,
    "quantize_mla_rows(Tensor(a!) cache, Tensor latent, Tensor rope, Tensor block, Tensor offset)"
    " -> ()",
    npu=("triton",),
    fake=lambda *args: None,
)
_QUANTIZED_SPARSE_MLA = declare(
    __name__,
    "quantized_sparse_mla(Tensor query_latent, Tensor query_rope, Tensor cache, Tensor selected, "
    "Tensor block_table, Tensor query_ends, Tensor seq_lens, float scale) -> Tensor",
    npu=("torch_npu", "triton"),
    fake=lambda query, *rest: torch.empty(query.shape, dtype=query.dtype, device=query.device),
)
