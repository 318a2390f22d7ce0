"""``x * scale + y`` in one pass."""

from __future__ import annotations

import torch

from ascend_ops_core.errors import InvalidInputError
from ascend_ops_core.registry import declare

__all__ = ["muls_add"]


def muls_add(x: torch.Tensor, y: torch.Tensor, scale: float) -> torch.Tensor:
    """``x * scale + y``, for example routed experts' output with its factor plus the shared one's.

    Args:
        x: any shape, float32, bfloat16 or float16; may be empty.
        y: shape and dtype of ``x``.
        scale: factor of ``x``.

    Returns:
        As ``x``, contiguous; computed in float32 and rounded once.

    Raises:
        InvalidInputError: another shape or dtype of ``y``.
    """
    if y.shape != x.shape or y.dtype != x.dtype:
        raise InvalidInputError(
            f"y {list(y.shape)} of {y.dtype} beside x {list(x.shape)} of {x.dtype}",
            "both have one shape and one dtype",
            "Cast or expand one of them.",
        )
    result: torch.Tensor = _MULS_ADD(x, y, scale)
    return result


_MULS_ADD = declare(
    __name__,
    "muls_add(Tensor x, Tensor y, float scale) -> Tensor",
    npu=("triton",),
    fake=lambda x, y, scale: torch.empty(x.shape, dtype=x.dtype, device=x.device),
)
