"""The short convolution of DFlash2, whose coefficients come from the row that it computes."""

from __future__ import annotations

import torch
from ascend_ops_core.checks import FLOATS, require_at_least, require_dtype, require_shape
from ascend_ops_core.errors import InvalidInputError
from ascend_ops_core.registry import declare

__all__ = ["grouped_convolution"]


def grouped_convolution(
    x: torch.Tensor,
    base: torch.Tensor,
    coefficients: torch.Tensor,
    side: int,
    block: int,
) -> torch.Tensor:
    """Convolve the rows of each block with those in front of them in the same block.

    With ``g = H / G`` channels in a group and ``t`` at place ``t % block`` of its block,
    ``y_tc = sum_j (base[side, j, c] + coefficients[t, side, j, c // g]) x_{t - j, c}`` over the
    ``j < taps`` that do not reach in front of the block (vLLM 0.32:
    ``models/qwen3_dflash2.py: DFlashGroupedConv``). No state passes from block to block.

    Args:
        x: ``[N, H]``, float32, bfloat16 or float16; ``N`` is a multiple of ``block``, or 0.
        base: ``[sides, taps, H]`` of the same dtype.
        coefficients: ``[N, sides, taps, G]`` of the same dtype; ``G`` divides ``H``.
        side: which of them.
        block: rows of a block.

    Returns:
        ``[N, H]`` in ``x.dtype``, accumulated in float32.

    Raises:
        InvalidInputError: shapes or dtypes that do not fit each other.
    """
    require_dtype("x", x, FLOATS)
    require_shape("x", x, None, None)
    rows, width = x.shape
    require_dtype("base", base, (x.dtype,))
    require_shape("base", base, None, None, width)
    sides, taps, _ = base.shape
    require_dtype("coefficients", coefficients, (x.dtype,))
    require_shape("coefficients", coefficients, rows, sides, taps, None)
    require_at_least("block", block, 1)
    groups = coefficients.shape[3]
    if groups < 1 or width % groups:
        raise InvalidInputError(
            f"{groups} groups of {width} channels",
            "every group has the same number of channels",
            "Correct conv_group_size.",
        )
    if not 0 <= side < sides:
        raise InvalidInputError(f"side={side}", f"it is 0 to {sides - 1}", "Correct side.")
    if rows % block:
        raise InvalidInputError(
            f"{rows} rows in blocks of {block}", "blocks are whole", "Pass every row of a block."
        )
    if not rows:
        return torch.empty_like(x)
    result: torch.Tensor = _GROUPED_CONVOLUTION(x, base, coefficients, side, block)
    return result


_GROUPED_CONVOLUTION = declare(
    __name__,
    "grouped_convolution(Tensor x, Tensor base, Tensor coefficients, int side, int block) "
    "-> Tensor",
    npu=("triton", "torch"),
    fake=lambda x, *rest: torch.empty_like(x),
)
