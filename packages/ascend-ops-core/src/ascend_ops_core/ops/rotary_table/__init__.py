"""Rows of a table of cosines and sines, by position: of text, and of images (mRoPE)."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from ascend_ops_core.checks import FLOATS, require_dtype
from ascend_ops_core.errors import InvalidInputError
from ascend_ops_core.registry import declare

__all__ = ["gather_cos_sin", "mrope_cos_sin"]


def gather_cos_sin(
    cos: torch.Tensor, sin: torch.Tensor, positions: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """``cos[positions]`` and ``sin[positions]``, never read outside of the table.

    Args:
        cos: ``[M, P]``, float32, bfloat16 or float16.
        sin: ``[M, P]`` of the same dtype.
        positions: ``[T]`` int32 or int64; ``T`` may be 0.

    Returns:
        Both ``[T, P]`` in the dtype of the tables. A position outside of the table is refused on a
        CPU; elsewhere, where looking would wait for the device, its row is NaN.

    Raises:
        InvalidInputError: tables that are not of one float dtype or differ in shape, positions of
            another dtype or shape, or, on a CPU, outside of the table.
    """
    _check_tables(cos, sin)
    _check_positions(positions, (positions.shape[-1],) if positions.dim() else (), cos.shape[0])
    result: tuple[torch.Tensor, torch.Tensor] = _GATHER_COS_SIN(cos, sin, positions)
    return result


def mrope_cos_sin(
    cos: torch.Tensor,
    sin: torch.Tensor,
    positions: torch.Tensor,
    sections: Sequence[int],
    interleaved: bool = False,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Cosines and sines whose pairs take time, height or width as their position (Qwen2-VL).

    Args:
        cos: ``[M, P]``, float32, bfloat16 or float16.
        sin: ``[M, P]`` of the same dtype.
        positions: ``[3, T]`` int32 or int64: time, height, width of every token.
        sections: how many of the ``P`` pairs take each of the three.
        interleaved: pairs take turns, time, height, width, until a section is used up and time
            takes the rest (Qwen3-VL), rather than standing in three blocks.

    Returns:
        Both ``[T, P]`` in the dtype of the tables; NaN as in :func:`gather_cos_sin`.

    Raises:
        InvalidInputError: what :func:`gather_cos_sin` refuses, or sections that are not three
            numbers with the sum ``P``.
    """
    _check_tables(cos, sin)
    if len(sections) != 3 or min(sections) < 0 or sum(sections) != cos.shape[1]:
        raise InvalidInputError(
            f"mrope_section={list(sections)}",
            f"it holds three numbers whose sum is the {cos.shape[1]} pairs of the table",
            "Correct mrope_section or the rotary dimension in the config.",
        )
    pairs = cos.shape[1]
    if interleaved and (3 * sections[1] > pairs + 1 or 3 * sections[2] > pairs):
        raise InvalidInputError(
            f"mrope_section={list(sections)} interleaved",
            f"every third of {pairs} pairs is fewer than a section",
            "Correct mrope_section in the config.",
        )
    _check_positions(positions, (3, positions.shape[-1] if positions.dim() else 0), cos.shape[0])
    result: tuple[torch.Tensor, torch.Tensor] = _MROPE_COS_SIN(
        cos, sin, positions, list(sections), interleaved
    )
    return result


def _check_tables(cos: torch.Tensor, sin: torch.Tensor) -> None:
    require_dtype("cos", cos, FLOATS)
    require_dtype("sin", sin, (cos.dtype,))
    if cos.dim() != 2 or cos.shape != sin.shape or 0 in cos.shape:
        raise InvalidInputError(
            f"tables of shapes {list(cos.shape)} and {list(sin.shape)}",
            "both are [M, P] with at least one position and one pair",
            "Build them together.",
        )


def _check_positions(positions: torch.Tensor, shape: tuple[int, ...], rows: int) -> None:
    if positions.dtype not in (torch.int32, torch.int64) or tuple(positions.shape) != shape:
        raise InvalidInputError(
            f"positions of {positions.dtype} and shape {list(positions.shape)}",
            f"they are int32 or int64 of shape [{'3, ' if len(shape) == 2 else ''}T]",
            "Pass one position for each token.",
        )
    if positions.numel() and positions.device.type == "cpu":
        low, high = (int(one) for one in positions.aminmax())
        if low < 0 or high >= rows:
            raise InvalidInputError(
                f"position {high if high >= rows else low}",
                f"the rotary table holds positions 0 to {rows - 1}",
                "Lower max_model_len, or build the table for a longer context.",
            )


def _fake(
    cos: torch.Tensor, sin: torch.Tensor, positions: torch.Tensor, *_: object
) -> tuple[torch.Tensor, torch.Tensor]:
    shape = (positions.shape[-1], cos.shape[1])
    return (
        torch.empty(shape, dtype=cos.dtype, device=cos.device),
        torch.empty(shape, dtype=cos.dtype, device=cos.device),
    )


_GATHER_COS_SIN = declare(
    __name__,
    "gather_cos_sin(Tensor cos, Tensor sin, Tensor positions) -> (Tensor, Tensor)",
    npu=("triton",),
    fake=_fake,
)

_MROPE_COS_SIN = declare(
    __name__,
    "mrope_cos_sin(Tensor cos, Tensor sin, Tensor positions, int[] sections, bool interleaved)"
    " -> (Tensor, Tensor)",
    npu=("triton",),
    fake=_fake,
)
