"""What lies where in a packed row: arithmetic, and the refusal of rows that cannot be packed."""

from __future__ import annotations

from ascend_ops_core.errors import InvalidInputError

GROUP = 64
"""Quantised values that share a scale."""

ROW_UNIT = 128
"""A packed row takes a multiple of these bytes."""


def groups_of(width: int, rotary: int) -> int:
    """Scales of a row; the last group may be short.

    Args:
        width: values of a row.
        rotary: values at its end that are not quantised.
    """
    return -(-(width - rotary) // GROUP)


def packed_bytes(width: int, rotary: int) -> int:
    """Bytes of a packed row, padding included: 640 for 512 values of which 64 are rotated.

    Args:
        width: values of a row.
        rotary: values at its end that are not quantised, fewer than ``width``.

    Raises:
        InvalidInputError: nothing is left to quantise, or an odd number of values, behind which
            bfloat16 would not be aligned.
    """
    check_row(width, rotary)
    used = width + rotary + groups_of(width, rotary)
    return -(-used // ROW_UNIT) * ROW_UNIT


def check_row(width: int, rotary: int) -> None:
    """Refuse a row that cannot be packed.

    Raises:
        InvalidInputError: see :func:`packed_bytes`.
    """
    if not 0 <= rotary < width or (width - rotary) % 2:
        raise InvalidInputError(
            f"a packed row of {width} values, {rotary} of them rotated",
            "an even number, at least 2, is quantised and the rest stays in bfloat16",
            "Keep the model's dtype in the caches (additional_config cache_dtype=model).",
        )
