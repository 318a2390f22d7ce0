"""Merging attention over parts of a context, by the logarithms of their softmax's denominators."""

from __future__ import annotations

import torch
from ascend_ops_core.checks import FLOATS, require_at_least, require_dtype, require_shape
from ascend_ops_core.registry import declare

from ascend_attention.ops.attention_states import reference

__all__ = ["merge_attention_states"]


def merge_attention_states(
    outs: torch.Tensor, lses: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Attention over a whole context from attention over its parts.

    ``sum_s w_s outs_s`` with ``w_s = exp(lses_s) / sum_i exp(lses_i)`` (flash decoding).

    Args:
        outs: ``[S, T, H, D]`` results over ``S`` parts, float32, bfloat16 or float16; ``T`` may
            be 0. Where a part has no token, what it holds is not read.
        lses: ``[S, T, H]`` float32, natural logarithms; ``-inf`` for a part without a token.

    Returns:
        ``[T, H, D]`` in the dtype of ``outs``, and ``[T, H]`` float32. Zeros and ``-inf`` where no
        part has a token.

    Raises:
        InvalidInputError: shapes or dtypes that do not fit each other, or no part at all.
    """
    require_dtype("outs", outs, FLOATS)
    require_shape("outs", outs, None, None, None, None)
    require_at_least("parts", outs.shape[0], 1)
    require_dtype("lses", lses, (torch.float32,))
    require_shape("lses", lses, *outs.shape[:3])
    result: tuple[torch.Tensor, torch.Tensor] = _MERGE_ATTENTION_STATES(outs, lses)
    return result


_MERGE_ATTENTION_STATES = declare(
    __name__,
    "merge_attention_states(Tensor outs, Tensor lses) -> (Tensor, Tensor)",
    npu=("triton", "torch"),
    fake=lambda outs, lses: (outs.new_empty(outs.shape[1:]), lses.new_empty(lses.shape[1:])),
    cpu=reference.merge_attention_states,
)
