"""Top-k and top-p."""

from __future__ import annotations

import torch

from ascend_ops_core.checks import FLOATS, INDICES, require_dtype, require_shape
from ascend_ops_core.registry import declare

__all__ = ["top_k_top_p"]


def top_k_top_p(
    logits: torch.Tensor, k: torch.Tensor | None, p: torch.Tensor | None
) -> torch.Tensor:
    """Set to -inf whatever is not among the k largest logits, or not in the nucleus of mass p.

    Row by row, top-k first. A logit stays if it is at least the k-th largest, so all that equal
    the k-th stay. Of those, in ascending order (equal ones by index), a logit goes if its
    probability and those before it sum to at most ``1 - p``; the last one always stays (Holtzman
    et al., 2020; vLLM: ``v1/sample/ops/topk_topp_sampler.py: apply_top_k_top_p_pytorch`` with a
    stable sort). So where equal logits lie across the border of the nucleus, those with the
    largest indices stay. The border is exact up to the rounding of float32 sums.

    Args:
        logits: ``[B, V]``, any float dtype, any strides, without NaN; -inf is allowed. ``B`` may
            be 0.
        k: ``[B]`` int32 or int64, or None. Values of 0 or less, or of ``V`` or more, mean no
            top-k for that row (vLLM instead needs them clamped to ``V``).
        p: ``[B]``, any float dtype, or None. Values of 1 or more mean no top-p for that row;
            values of 0 or less keep one logit.

    Returns:
        ``[B, V]`` in ``logits.dtype``, contiguous.

    Raises:
        InvalidInputError: another shape or dtype.
    """
    require_dtype("logits", logits, FLOATS)
    require_shape("logits", logits, None, None)
    if k is not None:
        require_shape("k", k, logits.shape[0])
        require_dtype("k", k, INDICES)
    if p is not None:
        require_shape("p", p, logits.shape[0])
        require_dtype("p", p, FLOATS)
    result: torch.Tensor = _TOP_K_TOP_P(logits, k, p)
    return result


_TOP_K_TOP_P = declare(
    __name__,
    "top_k_top_p(Tensor logits, Tensor? k, Tensor? p) -> Tensor",
    # npu_top_k_top_p refuses k of 0 or beyond 1024, which only the values of k could tell.
    npu=("triton", "torch"),
    fake=lambda logits, k, p: torch.empty(logits.shape, dtype=logits.dtype, device=logits.device),
)
