"""Health of logits."""

from __future__ import annotations

import torch

from ascend_ops_core.checks import FLOATS, require_dtype, require_shape
from ascend_ops_core.registry import declare

__all__ = ["num_nans"]


def num_nans(logits: torch.Tensor) -> torch.Tensor:
    """Number of NaN in each row (vLLM: ``v1/worker/gpu/metrics/logits.py: get_num_nans``).

    Args:
        logits: ``[B, V]``, any float dtype, any strides; ``B`` and ``V`` may be 0.

    Returns:
        ``[B]`` int32.

    Raises:
        InvalidInputError: another shape or dtype.
    """
    require_shape("logits", logits, None, None)
    require_dtype("logits", logits, FLOATS)
    result: torch.Tensor = _NUM_NANS(logits)
    return result


_NUM_NANS = declare(
    __name__,
    "num_nans(Tensor logits) -> Tensor",
    npu=("triton", "torch"),
    fake=lambda logits: torch.empty(logits.shape[:1], dtype=torch.int32, device=logits.device),
)
