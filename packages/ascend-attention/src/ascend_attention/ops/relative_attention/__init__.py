"""Attention with a bias for every pair of tokens, as relative positions give it.

T5 (Raffel et al., 2020) makes it from the distance of two tokens, SAM and MViTv2 (Li et al., 2022)
from the query and the distances of two patches along both axes;
:mod:`ascend_attention.layers.relative_position` has both.
"""

from __future__ import annotations

import torch
from ascend_ops_core.checks import FLOATS, require_dtype, require_shape
from ascend_ops_core.errors import InvalidInputError
from ascend_ops_core.registry import declare

from ascend_attention.ops.relative_attention import reference

__all__ = ["relative_attention"]


def relative_attention(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, bias: torch.Tensor, scale: float
) -> torch.Tensor:
    """``softmax(scale * query key^T + bias) value`` for every head.

    Args:
        query: ``[B, S, H, D]``, float32, bfloat16 or float16; any size may be 0. Values of a head
            lie side by side.
        key: ``[B, L, H, D]`` of the same dtype; ``L`` is at least 1.
        value: the same.
        bias: ``[B, H, S, L]``, or ``[1, H, S, L]`` for all alike, any of these dtypes; ``-inf``
            hides a key, of which a query sees at least one.
        scale: factor on the dot products, not on the bias.

    Returns:
        ``[B, S, H, D]`` in the query's dtype, accumulated in float32.

    Raises:
        InvalidInputError: shapes or dtypes that do not fit each other, or no key.
    """
    require_dtype("query", query, FLOATS)
    require_shape("query", query, None, None, None, None)
    batch, tokens, heads, width = query.shape
    require_shape("key", key, batch, None, heads, width)
    require_shape("value", value, *key.shape)
    for name, one in (("key", key), ("value", value)):
        require_dtype(name, one, (query.dtype,))
    require_dtype("bias", bias, FLOATS)
    require_shape("bias", bias, None, heads, tokens, key.shape[1])
    if bias.shape[0] not in (1, batch):
        raise InvalidInputError(
            f"bias of {bias.shape[0]} batches",
            f"queries have {batch}",
            "Pass one for each, or one for all.",
        )
    if key.shape[1] < 1:
        raise InvalidInputError("no keys", "a query sees at least one", "Pass keys.")
    result: torch.Tensor = _RELATIVE_ATTENTION(query, key, value, bias, scale)
    return result


_RELATIVE_ATTENTION = declare(
    __name__,
    "relative_attention(Tensor query, Tensor key, Tensor value, Tensor bias, float scale) "
    "-> Tensor",
    npu=("torch_npu", "triton", "torch"),
    fake=lambda query, *rest: query.new_empty(query.shape),
    cpu=reference.relative_attention,
)
