"""Rounding to narrow formats, shared by the quantising operators."""

from __future__ import annotations

import torch

LARGEST = {
    torch.int8: 127.0,
    torch.float8_e4m3fn: 448.0,
    torch.float8_e5m2: 57344.0,
}
"""Largest finite value by dtype."""

INT4_LARGEST = 7.0

# Between which magnitudes of FP4 E2M1 (0, 0.5, 1, 1.5, 2, 3, 4, 6) a value is rounded, halves to
# the even code: down at the first set of midpoints, up at the second.
_FP4_DOWN = (0.25, 1.25, 2.5, 5.0)
_FP4_UP = (0.75, 1.75, 3.5)


def narrowed(values: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Round half to even and saturate to int8, uint8, int32 or an 8-bit float."""
    if dtype.is_floating_point:
        largest = LARGEST[dtype]
        return values.clamp(-largest, largest).to(dtype)
    limits = torch.iinfo(dtype)
    return values.double().round().clamp(limits.min, limits.max).to(dtype)


def divided(values: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    """``values / scale``, and 0 where the scale is 0 (a row of zeros)."""
    return torch.where(scale == 0, 0.0, values / torch.where(scale == 0, 1.0, scale))


def packed_int4(values: torch.Tensor) -> torch.Tensor:
    """Round to int4, 8 in an int32, the first in the lowest bits: [..., n] to [..., n / 8]."""
    rounded = values.round().clamp(-8, 7).long() & 0xF
    shifts = torch.arange(0, 32, 4)
    words = (rounded.unflatten(-1, (-1, 8)) << shifts).sum(-1)
    return torch.where(words >= 2**31, words - 2**32, words).to(torch.int32)


def packed_fp4(values: torch.Tensor) -> torch.Tensor:
    """Round to FP4 E2M1, 2 in a uint8, the first in the low bits: [..., n] to [..., n / 2]."""
    size = values.abs()
    code = torch.signbit(values).to(torch.uint8) << 3
    for edge in _FP4_DOWN:
        code += size > edge
    for edge in _FP4_UP:
        code += size >= edge
    pairs = code.unflatten(-1, (-1, 2))
    return pairs[..., 0] | (pairs[..., 1] << 4)
