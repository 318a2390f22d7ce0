"""Structured output: logits of tokens that a grammar forbids."""

from __future__ import annotations

import torch

from ascend_ops_core.checks import FLOATS, INDICES, require_dtype, require_shape
from ascend_ops_core.errors import InvalidInputError
from ascend_ops_core.registry import declare

__all__ = ["apply_grammar_bitmask"]


def apply_grammar_bitmask(logits: torch.Tensor, bitmask: torch.Tensor, rows: torch.Tensor) -> None:
    """Set the logits of forbidden tokens to -inf, in place.

    Token ``v`` of row ``rows[m]`` is forbidden if bit ``v % 32`` of ``bitmask[m, v // 32]`` is 0
    (xgrammar's format; vLLM: ``v1/worker/gpu/structured_outputs.py``).

    Args:
        logits: ``[B, V]``, any float dtype, any strides; written.
        bitmask: ``[M, W]`` int32 with ``32 * W >= V``; ``M`` may be 0.
        rows: ``[M]`` int32 or int64, different from each other and below ``B``. A negative one is
            padding: its mask touches nothing.

    Raises:
        InvalidInputError: another shape or dtype, or fewer bits than tokens; nothing was written
            then.
    """
    require_shape("logits", logits, None, None)
    require_dtype("logits", logits, FLOATS)
    require_shape("bitmask", bitmask, None, None)
    require_dtype("bitmask", bitmask, (torch.int32,))
    require_shape("rows", rows, bitmask.shape[0])
    require_dtype("rows", rows, INDICES)
    if 32 * bitmask.shape[1] < logits.shape[1]:
        raise InvalidInputError(
            f"bitmask of {bitmask.shape[1]} words",
            f"{logits.shape[1]} tokens take {-(-logits.shape[1] // 32)}",
            "Pass a bit for every token.",
        )
    _APPLY_GRAMMAR_BITMASK(logits, bitmask, rows)


_APPLY_GRAMMAR_BITMASK = declare(
    __name__,
    "apply_grammar_bitmask(Tensor(a!) logits, Tensor bitmask, Tensor rows) -> ()",
    npu=("triton", "torch"),
    fake=lambda logits, bitmask, rows: None,
)
