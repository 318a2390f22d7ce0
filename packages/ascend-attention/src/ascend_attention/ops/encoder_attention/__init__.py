"""Attention within each of several sequences that lie behind each other, as encoders have it.

Images, frames or windows of a vision encoder, and utterances of an audio encoder, are such
sequences: every token sees all of its own one, and nothing of another.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from ascend_ops_core.checks import FLOATS, INDICES, require_dtype, require_shape
from ascend_ops_core.errors import InvalidInputError
from ascend_ops_core.registry import declare

from ascend_attention.ops.encoder_attention import reference

__all__ = ["encoder_attention"]


def encoder_attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    cu_seqlens: torch.Tensor,
    scale: float,
    *,
    ends: Sequence[int] = (),
) -> torch.Tensor:
    """Attend to every token of a token's sequence, without any mask.

    For head ``h`` of a token, which shares key head ``g = h // (H / K)``:
    ``sum_i softmax_i(scale * query . key_i[g]) value_i[g]`` over its sequence.

    Args:
        query: ``[T, H, D]``, float32, bfloat16 or float16; ``T`` may be 0. Values of a head lie
            side by side.
        key: ``[T, K, D]`` of the same dtype; ``K`` divides ``H``.
        value: the same.
        cu_seqlens: ``[S + 1]`` int32 or int64 from 0 on, where sequences begin and end, ascending;
            a sequence may be empty. Tokens behind the last one are padding.
        scale: factor on the dot products.
        ends: ``[S]``, ``cu_seqlens[1:]`` where the host knows it; empty if only the device does, as
            in a captured graph. torch_npu's operator needs it.

    Returns:
        ``[T, H, D]`` in the query's dtype, accumulated in float32; zeros for padding.

    Raises:
        InvalidInputError: shapes or dtypes that do not fit each other, or ends of another number of
            sequences.
    """
    require_dtype("query", query, FLOATS)
    require_shape("query", query, None, None, None)
    tokens, heads, width = query.shape
    require_shape("key", key, tokens, None, width)
    require_shape("value", value, *key.shape)
    for name, one in (("key", key), ("value", value)):
        require_dtype(name, one, (query.dtype,))
    if key.shape[1] < 1 or heads % key.shape[1]:
        raise InvalidInputError(
            f"{heads} query heads with {key.shape[1]} key heads",
            "the same number of query heads shares each key head",
            "Check the encoder's config.",
        )
    require_shape("cu_seqlens", cu_seqlens, None)
    require_dtype("cu_seqlens", cu_seqlens, INDICES)
    if len(ends) not in (0, cu_seqlens.shape[0] - 1):
        raise InvalidInputError(
            f"{len(ends)} ends",
            f"cu_seqlens has {cu_seqlens.shape[0] - 1} sequences",
            "Pass one for every sequence, or none.",
        )
    result: torch.Tensor = _ENCODER_ATTENTION(query, key, value, cu_seqlens, scale, tuple(ends))
    return result


_ENCODER_ATTENTION = declare(
    __name__,
    "encoder_attention(Tensor query, Tensor key, Tensor value, Tensor cu_seqlens, float scale, "
    "int[] ends) -> Tensor",
    npu=("torch_npu", "triton", "torch"),
    fake=lambda query, *rest: query.new_empty(query.shape),
    cpu=reference.encoder_attention,
)
