"""Attention over a sliding window and selected compressed entries, with sinks.

DeepSeek-V4 shares one key-value head among all query heads, and its rows are key and value at
once. Each head has a sink logit that takes part in the softmax and adds nothing to the output.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from ascend_ops_core.checks import FLOATS, INDICES, require_dtype, require_shape
from ascend_ops_core.cpu_kernels import CpuKernels
from ascend_ops_core.errors import InvalidInputError
from ascend_ops_core.registry import declare

from ascend_attention.ops.packed_rows import check_packed
from ascend_attention.ops.sparse_attention import reference
from ascend_attention.ops.sparse_attention.source import RowSource, sources_of

_cpu = CpuKernels("ascend_attention.ops.sparse_attention.cpu")

__all__ = ["RowSource", "sparse_attention"]


def sparse_attention(
    query: torch.Tensor, sources: Sequence[RowSource], sinks: torch.Tensor, scale: float
) -> torch.Tensor:
    """Attend to the rows of all sources together.

    For head ``h`` of token ``t`` with rows ``r_i``: ``sum_i softmax_i(scale * q . r_i, sink) r_i``,
    where the sink takes its share of the softmax (DeepSeek-V4, transformers:
    ``modeling_deepseek_v4.py: eager_attention_forward``).

    Args:
        query: ``[T, H, D]``, float32, bfloat16 or float16; ``T`` may be 0.
        sources: where each token's rows are. What is not valid is never read. Either all of them
            hold packed rows, of the same form, or none.
        sinks: ``[H]`` float32 logits.
        scale: factor on the dot products.

    Returns:
        ``[T, H, D]`` in ``query.dtype``; softmax and sums in float32. A token without any valid
        row, such as padding, gives zeros.

    Raises:
        InvalidInputError: shapes or dtypes that do not fit each other.
    """
    if query.dim() != 3 or query.dtype not in FLOATS or sinks.shape != query.shape[1:2]:
        require_dtype("query", query, FLOATS)
        require_shape("query", query, None, None, None)
        require_shape("sinks", sinks, query.shape[1])
    rotary = sources[0].rotary if sources else None
    for source in sources:
        _check_source(query, source, rotary)
    # On a CPU straight to the kernel, whose arguments are the sources themselves.
    if type(query) is torch.Tensor and query.is_cpu and not torch.compiler.is_compiling():
        return _attend_on_cpu(query, sources, sinks, scale)
    result: torch.Tensor = _SPARSE_ATTENTION(
        query,
        [source.cache for source in sources],
        [source.index.block for source in sources],
        [source.index.offset for source in sources],
        [source.valid for source in sources],
        sinks,
        scale,
        rotary,
    )
    return result


def _check_source(query: torch.Tensor, source: RowSource, rotary: int | None) -> None:
    cache, (block, offset), valid = source.cache, source.index, source.valid
    shape = (query.shape[0], block.shape[-1])
    # The usual case in one condition, since a decode step asks for every layer.
    if (
        rotary is None
        and source.rotary is None
        and cache.dim() == 3
        and cache.shape[2] == query.shape[2]
        and block.shape == offset.shape == shape
        and block.dtype in INDICES
        and offset.dtype in INDICES
        and (valid is None or (valid.shape == shape and valid.dtype == torch.bool))
    ):
        return
    if source.rotary != rotary:
        raise InvalidInputError(
            f"sources with rotary={source.rotary} and rotary={rotary}",
            "all sources of a call hold the same form of rows",
            "Keep both caches in one dtype.",
        )
    if rotary is None:
        require_shape("cache", cache, None, None, query.shape[2])
    else:
        check_packed(cache, query.shape[2], rotary)
    require_shape("block", block, query.shape[0], None)
    require_shape("offset", offset, *block.shape)
    require_dtype("block", block, INDICES)
    require_dtype("offset", offset, INDICES)
    if valid is not None:
        require_shape("valid", valid, *block.shape)
        require_dtype("valid", valid, (torch.bool,))


def _attend_on_cpu(
    query: torch.Tensor, sources: Sequence[RowSource], sinks: torch.Tensor, scale: float
) -> torch.Tensor:
    kernels = _cpu.usable(query, sinks, *(source.cache for source in sources))
    if kernels is not None and kernels.supports(query, sources, sinks):
        return kernels.sparse_attention(query, sources, sinks, scale)
    return reference.attend(query, sources, sinks, scale)


def _sparse_attention_cpu(
    query: torch.Tensor,
    caches: list[torch.Tensor],
    blocks: list[torch.Tensor],
    offsets: list[torch.Tensor],
    valid: list[torch.Tensor | None],
    sinks: torch.Tensor,
    scale: float,
    rotary: int | None = None,
) -> torch.Tensor:
    return _attend_on_cpu(query, sources_of(caches, blocks, offsets, valid, rotary), sinks, scale)


_SPARSE_ATTENTION = declare(
    __name__,
    "sparse_attention(Tensor query, Tensor[] caches, Tensor[] blocks, Tensor[] offsets, "
    "Tensor?[] valid, Tensor sinks, float scale, int? rotary=None) -> Tensor",
    # No fused attention of torch_npu takes two paged caches with sinks and selected rows.
    npu=("triton", "torch"),
    fake=lambda query, *rest: torch.empty(query.shape, dtype=query.dtype, device=query.device),
    cpu=_sparse_attention_cpu,
)
