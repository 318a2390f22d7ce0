"""The numeric bars of operator tests, in one place: a tolerance belongs to a number format."""

from __future__ import annotations

from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class Tolerance:
    """``|actual - expected| <= atol + rtol * |expected|``.

    Attributes:
        rtol: relative part.
        atol: absolute part, for values of order one.
    """

    rtol: float
    atol: float


TOLERANCES: dict[torch.dtype, Tolerance] = {
    torch.float32: Tolerance(rtol=1e-5, atol=1e-5),
    torch.bfloat16: Tolerance(rtol=2**-6, atol=2**-7),
    torch.float16: Tolerance(rtol=2**-9, atol=2**-10),
}
"""By the dtype of the result. Sums run in float32, so float32 differs by their order only; a
16-bit result may differ by two units in the last place and a rounded intermediate value."""


def assert_close(
    actual: torch.Tensor,
    expected: torch.Tensor,
    *,
    scale: float = 1.0,
    operands: torch.dtype | None = None,
) -> None:
    """Fail unless ``actual`` equals ``expected`` within the tolerance of its own dtype.

    Args:
        actual: the result under test.
        expected: what is right, of the same shape and any float dtype. NaN equals NaN.
        scale: magnitude of the terms that were summed, where it is far from one.
        operands: what intermediate values are rounded to where they are operands of products; a
            result of a wider dtype is held to the tolerance of this one.

    Raises:
        AssertionError: another shape, or a difference beyond the tolerance.
        KeyError: a dtype without a tolerance.
    """
    formats = (actual.dtype, actual.dtype if operands is None else operands)
    bar = max((TOLERANCES[one] for one in formats), key=lambda one: one.rtol)
    torch.testing.assert_close(
        actual.double(),
        expected.double(),
        rtol=bar.rtol,
        atol=bar.atol * scale,
        equal_nan=True,
    )
