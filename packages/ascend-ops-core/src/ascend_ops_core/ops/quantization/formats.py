"""Number formats of quantised values, in torch, and the checks that all quantisations share."""

from __future__ import annotations

import torch

from ascend_ops_core.devices import DeviceFacts
from ascend_ops_core.errors import InvalidInputError

FLOATS = (torch.float32, torch.bfloat16, torch.float16)

LARGEST = {torch.int8: 127.0, torch.float8_e4m3fn: 448.0}
"""Largest magnitude that a row is scaled to, by dtype."""

SMALLEST_SCALE = float(torch.finfo(torch.float32).tiny)
"""Below this a scale counts as 0: dividing by it is not exact, and NPUs flush it."""

E8M0_BIAS = 127
E8M0_NAN = 255

E2M1_VALUES = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
"""Magnitudes of FP4 by its three low bits; the fourth is the sign."""

# Magnitudes above the first edges, and at or above the second, belong to the next code: halves go
# to the even code.
_E2M1_ABOVE = (0.25, 1.25, 2.5, 5.0)
_E2M1_FROM = (0.75, 1.75, 3.5)


def narrowed(values: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Round float32 to int8 or float8_e4m3fn, half to even and saturating; NaN becomes int8 0."""
    if dtype == torch.int8:
        return values.nan_to_num(nan=0.0).round().clamp(-128, 127).to(dtype)
    return values.clamp(-LARGEST[dtype], LARGEST[dtype]).to(dtype)


def scaled(values: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    """``values / scale`` as the package's rules want it for zero and infinite scales."""
    divided = values / torch.where(scale >= SMALLEST_SCALE, scale, 1.0)
    return torch.where(divided.isnan(), 0.0, divided)


def largest_magnitude(values: torch.Tensor, dim: int | tuple[int, ...]) -> torch.Tensor:
    """``max |values|``, infinite where one of them is NaN."""
    magnitude = values.abs()
    return torch.where(magnitude.isnan(), torch.inf, magnitude).amax(dim)


def e8m0_values(codes: torch.Tensor) -> torch.Tensor:
    """The powers of two behind uint8 codes, in float32."""
    ones = torch.ones(codes.shape, device=codes.device)
    powers = torch.ldexp(ones, codes.int() - E8M0_BIAS)
    return torch.where(codes == E8M0_NAN, torch.nan, powers)


def e2m1_codes(values: torch.Tensor) -> torch.Tensor:
    """Round float32 to FP4, half to even and saturating: codes 0 to 15 as uint8."""
    size = values.abs()
    code = torch.zeros_like(size, dtype=torch.uint8)
    for edge in _E2M1_ABOVE:
        code += (size > edge).to(torch.uint8)
    for edge in _E2M1_FROM:
        code += (size >= edge).to(torch.uint8)
    return code | (torch.signbit(values).to(torch.uint8) << 3)


def e2m1_values(codes: torch.Tensor) -> torch.Tensor:
    """The values of FP4 codes, in float32."""
    table = torch.tensor(E2M1_VALUES, device=codes.device)
    magnitude = table[(codes & 7).long()]
    return torch.where(codes > 7, -magnitude, magnitude)


def check_values(name: str, x: torch.Tensor) -> None:
    """Refuse what is not a float tensor with at least one axis.

    Raises:
        InvalidInputError: another dtype, or no axis.
    """
    if x.dtype not in FLOATS:
        raise InvalidInputError(
            f"{name} of {x.dtype}", "float32, bfloat16 or float16 are quantised", "Convert it."
        )
    if x.dim() == 0:
        raise InvalidInputError(
            f"{name} without axes", "its last axis is quantised", "Give it one row."
        )


def check_target(dtype: torch.dtype) -> None:
    """Refuse a dtype that values are not quantised to.

    Raises:
        InvalidInputError: neither int8 nor float8_e4m3fn.
    """
    if dtype not in LARGEST:
        raise InvalidInputError(
            f"dtype {dtype}", "values become torch.int8 or torch.float8_e4m3fn", "Choose one."
        )


def check_result(dtype: torch.dtype) -> None:
    """Refuse a dtype that values are not dequantised to.

    Raises:
        InvalidInputError: not a float.
    """
    if dtype not in FLOATS:
        raise InvalidInputError(
            f"dtype {dtype}", "values become float32, bfloat16 or float16", "Choose one."
        )


def exists_on(facts: DeviceFacts, dtype: torch.dtype) -> tuple[bool, str]:
    """The check, for ``first_refusal``, that a device family has a dtype."""
    return dtype in (facts.dtypes.value or ()), f"{facts.family} has no {dtype}"
