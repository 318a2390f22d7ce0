"""Rotation of the last axis by a Hadamard matrix (Sylvester's order), as QuaRot has it."""

from __future__ import annotations

import torch

from ascend_ops_core.errors import InvalidInputError
from ascend_ops_core.registry import declare

__all__ = ["LARGEST_BLOCK", "hadamard"]

LARGEST_BLOCK = 8192
"""Widest block that is rotated as a whole."""


def hadamard(
    x: torch.Tensor, *, block: int | None = None, scale: float | None = None
) -> torch.Tensor:
    """``x @ H * scale`` over the last axis, block by block.

    ``H[i, j] = (-1)^popcount(i & j)``, so that ``H @ H = block * I`` and two rotations with the
    default scale give the input back.

    Args:
        x: ``[..., D]``, float32, bfloat16 or float16; may have no rows.
        block: channels that are rotated together: a power of two up to 8192 that divides ``D``.
            The largest such number if None; for ``D`` = 7168 that is 1024.
        scale: factor of the result, ``1 / sqrt(block)`` if None.

    Returns:
        ``[..., D]`` in ``x.dtype``; sums in float32, rounded once.

    Raises:
        InvalidInputError: a block that is no power of two, is too wide, or does not divide ``D``.
    """
    width = x.shape[-1]
    size = min(width & -width, LARGEST_BLOCK) if block is None else block
    if size < 1 or size & (size - 1) or size > LARGEST_BLOCK or width % size:
        raise InvalidInputError(
            f"block={block} for {width} channels",
            f"a block is a power of two up to {LARGEST_BLOCK} that divides the channels",
            "Leave it out for the largest one.",
        )
    result: torch.Tensor = _HADAMARD(x, size, size**-0.5 if scale is None else scale)
    return result


_HADAMARD = declare(
    __name__,
    "hadamard(Tensor x, int block, float scale) -> Tensor",
    npu=("triton",),
    fake=lambda x, block, scale: torch.empty(x.shape, dtype=x.dtype, device=x.device),
)
