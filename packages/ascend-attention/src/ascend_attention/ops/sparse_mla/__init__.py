"""Absorbed MLA over selected tokens (DeepSeek-V3.2, GLM-5).

All query heads share one row per token: a latent, which is key and value at once, and a rotated
part, which is key alone. Queries are absorbed into the latent's space, and so is the result.
"""

from __future__ import annotations

import torch
from ascend_ops_core.checks import FLOATS, require_dtype, require_shape
from ascend_ops_core.cpu_kernels import CpuKernels
from ascend_ops_core.registry import declare

from ascend_attention.ops.sparse_mla import reference

_cpu = CpuKernels("ascend_attention.ops.sparse_mla.cpu")

__all__ = ["sparse_mla"]


def sparse_mla(
    query_latent: torch.Tensor,
    query_rope: torch.Tensor,
    latent_cache: torch.Tensor,
    rope_cache: torch.Tensor,
    selected: torch.Tensor,
    block_table: torch.Tensor,
    query_ends: torch.Tensor,
    seq_lens: torch.Tensor,
    scale: float,
) -> torch.Tensor:
    """Attend to the selected tokens of each query.

    For head ``h`` of query ``t`` with selected rows ``(c_i, r_i)``:
    ``sum_i softmax_i(scale * (query_latent . c_i + query_rope . r_i)) c_i``
    (DeepSeek-V2 report, section 2.1.2; DeepSeek-V3.2 report, equation 3).

    Args:
        query_latent: ``[T, H, L]``, float32, bfloat16 or float16; ``T`` may be 0.
        query_rope: ``[T, H, R]`` of the same dtype.
        latent_cache: ``[B, P, L]`` of the same dtype, any strides of blocks and rows.
        rope_cache: ``[B, P, R]`` of the same dtype, any strides of blocks and rows.
        selected: ``[T, K]`` int32 token numbers within the query's request, each at most once;
            -1 marks unused places, which come last.
        block_table: ``[Q, nb]`` int32, blocks of every request in order.
        query_ends: ``[Q]`` int32, queries of the request and of all before it. Queries behind the
            last of them are padding.
        seq_lens: ``[Q]`` int32, context length of every request, its queries included.
        scale: factor on the dot products.

    Returns:
        ``[T, H, L]`` in ``query_latent.dtype``; softmax and sums in float32. A query without
        selected tokens, such as padding, gives zeros.

    Raises:
        InvalidInputError: shapes or dtypes that do not fit each other.
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
    require_shape("query_ends", query_ends, block_table.shape[0])
    require_shape("seq_lens", seq_lens, block_table.shape[0])
    for name, value in (
        ("selected", selected),
        ("block_table", block_table),
        ("query_ends", query_ends),
        ("seq_lens", seq_lens),
    ):
        require_dtype(name, value, (torch.int32,))
    result: torch.Tensor = _SPARSE_MLA(
        query_latent,
        query_rope,
        latent_cache,
        rope_cache,
        selected,
        block_table,
        query_ends,
        seq_lens,
        scale,
    )
    return result


def _sparse_mla_cpu(
    query_latent: torch.Tensor,
    query_rope: torch.Tensor,
    latent_cache: torch.Tensor,
    rope_cache: torch.Tensor,
    selected: torch.Tensor,
    block_table: torch.Tensor,
    query_ends: torch.Tensor,
    seq_lens: torch.Tensor,
    scale: float,
) -> torch.Tensor:
    given = (query_latent, query_rope, latent_cache, rope_cache)
    kernels = _cpu.usable(*given)
    run = reference.sparse_mla
    if kernels is not None and kernels.supports(*given):
        run = kernels.sparse_mla
    return run(*given, selected, block_table, query_ends, seq_lens, scale)


_SPARSE_MLA = declare(
    __name__,
    "sparse_mla(Tensor query_latent, Tensor query_rope, Tensor latent_cache, Tensor rope_cache, "
    "Tensor selected, Tensor block_table, Tensor query_ends, Tensor seq_lens, float scale) "
    "-> Tensor",
    npu=("torch_npu", "triton", "torch"),
    fake=lambda query, *rest: torch.empty(query.shape, dtype=query.dtype, device=query.device),
    cpu=_sparse_mla_cpu,
)
