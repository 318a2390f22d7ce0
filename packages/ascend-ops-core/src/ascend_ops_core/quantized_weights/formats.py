"""How checkpoints store quantised weights, as data.

A weight ``[N, K]`` is values and scales: ``w[n, k] = value(code[n, k]) * scale[n // r, k // c]``,
``r`` rows and ``c`` columns sharing a scale. Rules that hold in every format:

- A block whose scale is 0, or whose codes are 0, is zeros.
- A power of two with the code 255 is NaN, and so is a float32 scale that is no number: the whole
  block is NaN, never plausible and wrong. Loading refuses such a checkpoint.
- The largest code is the format's largest value (448, 6, 127, 7); nothing is beyond it. The codes
  0x7F and 0xFF of float8_e4m3fn are NaN.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum

import torch

__all__ = ["Codes", "Role", "Rows", "Scheme", "StoredTensor", "WeightFormat"]

Shapes = Callable[[int, int], tuple[tuple[int, ...], ...]]
"""The shapes that a tensor may have for a weight of so many rows and columns, the usual first."""


class Codes(Enum):
    """What a value is stored as; the value is the name in operators' arguments."""

    E4M3 = "float8_e4m3fn"
    INT8 = "int8"
    E2M1 = "float4_e2m1fn"
    INT4 = "int4"

    @property
    def per_byte(self) -> int:
        """Values in a byte; of two the even one has the low bits."""
        return 2 if self in (Codes.E2M1, Codes.INT4) else 1

    @property
    def dtype(self) -> torch.dtype:
        """In which a model holds them: bytes where two share one."""
        return {Codes.E4M3: torch.float8_e4m3fn, Codes.INT8: torch.int8}.get(self, torch.uint8)


class Rows(Enum):
    """What tokens become in front of the product, on devices that multiply quantised values."""

    FLOAT = "float"
    INT8_DYNAMIC = "int8, a scale for each token"
    INT8_STATIC = "int8, one scale of the checkpoint"
    FP8_BLOCK = "float8, a scale for 128 columns of a token"
    FP8_DYNAMIC = "float8, a scale for each token"
    MXFP8 = "float8, a power of two for 32 columns of a token"


class Role(Enum):
    """What a stored tensor is."""

    VALUES = "values"
    SCALE = "scale"
    DEQUANTIZATION_SCALE = "scale of weight and input"
    INPUT_SCALE = "scale of the input"
    ZERO = "zeros, since weights are symmetric"
    CHECKED = "checked, not used"


@dataclass(frozen=True)
class WeightFormat:
    """How a model holds a weight.

    Attributes:
        codes: of the values.
        rows: rows that share a scale; 0 for all.
        columns: columns that share a scale; 0 for all.
        powers: scales are powers of two, a byte each: the exponent plus 127.
    """

    codes: Codes
    rows: int
    columns: int
    powers: bool = False

    @property
    def scale_dtype(self) -> torch.dtype:
        """Of the scales in a model."""
        return torch.uint8 if self.powers else torch.float32

    def scale_shape(self, rows: int, columns: int) -> tuple[int, int]:
        """Of the scales of ``[rows, columns]``."""
        return _blocks(rows, self.rows), _blocks(columns, self.columns)


@dataclass(frozen=True)
class StoredTensor:
    """One tensor of a layer in a checkpoint.

    Attributes:
        suffix: behind the layer's name and a dot.
        role: what it is.
        dtypes: that it may have.
        shapes: that it may have.
        optional: may be absent.
        row_pairs: two rows share a byte, the even one having the low bits, not two columns.
    """

    suffix: str
    role: Role
    dtypes: tuple[torch.dtype, ...]
    # The scheme's format says the same, and functions are not equal to each other.
    shapes: Shapes = field(compare=False)
    optional: bool = False
    row_pairs: bool = False


@dataclass(frozen=True)
class Scheme:
    """How a checkpoint stores a layer, and how the model holds it.

    Attributes:
        name: for people, and the key by which two layers have one scheme.
        format: in the model.
        tensors: in the checkpoint.
        rows: what tokens become on devices that multiply quantised values.
    """

    name: str
    format: WeightFormat
    tensors: tuple[StoredTensor, ...]
    rows: Rows

    def tensor(self, role: Role) -> StoredTensor | None:
        """The tensor of a role, if the scheme has one."""
        return next((one for one in self.tensors if one.role is role), None)

    def nbytes(self, rows: int, columns: int) -> int:
        """Bytes that a model holds for a weight ``[rows, columns]``."""
        scale_rows, scale_columns = self.format.scale_shape(rows, columns)
        values = rows * -(-columns // self.format.codes.per_byte)
        return values + scale_rows * scale_columns * self.format.scale_dtype.itemsize


def _blocks(size: int, share: int) -> int:
    return -(-size // share) if share else 1


def whole(rows: int, columns: int) -> tuple[tuple[int, ...], ...]:
    """``[N, K]``."""
    return ((rows, columns),)


def in_pairs(rows: int, columns: int) -> tuple[tuple[int, ...], ...]:
    """``[N, K / 2]``."""
    return ((rows, columns // 2),)


def in_row_pairs(rows: int, columns: int) -> tuple[tuple[int, ...], ...]:
    """``[N / 2, K]``."""
    return ((rows // 2, columns),)


def per_block(height: int, width: int) -> Shapes:
    """``[ceil(N / height), ceil(K / width)]``."""
    return lambda rows, columns: ((_blocks(rows, height), _blocks(columns, width)),)


def per_channel(rows: int, columns: int) -> tuple[tuple[int, ...], ...]:
    """``[N, 1]`` or ``[N]``."""
    return (rows, 1), (rows,)


def one_value(rows: int, columns: int) -> tuple[tuple[int, ...], ...]:
    """``[1]`` or no axis."""
    return (1,), ()
