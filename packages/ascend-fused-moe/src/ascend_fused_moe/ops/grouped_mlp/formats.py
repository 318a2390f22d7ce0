"""How rows and weights of a quantised grouped product are stored, as data.

=============  =============================  ===============================  ==================
format         values of ``[.., K]``          scales                           what shares one
=============  =============================  ===============================  ==================
``float``      ``[M, K]`` any float           none
``int8``       ``[.., K]`` int8               ``[M]``; weights ``[G, N]``      row, output channel
``int4``       ``[G, N, K / 2]`` uint8        ``[G, N]`` or ``[G, N, K / s]``  channel, s columns
``fp8_block``  ``[.., K]`` float8_e4m3fn      ``[M, ceil(K / 128)]``; weights  128 columns, or
                                              ``[G, ceil(N/128), ceil(K/128)]``  128 x 128
``mxfp8``      ``[.., K]`` float8_e4m3fn      ``[.., K / 32]``                 32 columns
``mxfp4``      ``[.., K / 2]`` uint8          ``[.., K / 32]``                 32 columns
=============  =============================  ===============================  ==================

Scales of int8 and int4 are float32 or bfloat16, those of ``fp8_block`` float32 or powers of two,
those of ``mx`` powers of two: uint8 or float8_e8m0fnu. Of two values in a byte the even one has the
low bits; int4 is two's complement.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from ascend_ops_core.errors import InvalidInputError
from ascend_ops_core.ops.quantization.blocks import COLUMNS, scale_shape
from ascend_ops_core.ops.quantization.formats import e2m1_values
from ascend_ops_core.ops.quantization.mx import BLOCK

__all__ = [
    "FORMATS",
    "TAKES_ROWS",
    "Format",
    "check_rows",
    "check_weight",
    "plain_scale",
    "unpacked_int4",
]

_FLOATS = (torch.float32, torch.bfloat16, torch.float16)
_CHANNEL_SCALES = (torch.float32, torch.bfloat16)
_POWERS = (torch.uint8,)
_INT4_SIGN = 8


@dataclass(frozen=True)
class Format:
    """One way to store values.

    Attributes:
        name: see this module's docstring.
        dtypes: of the values.
        scale_dtypes: of the scales, float8_e8m0fnu seen as uint8; empty without scales.
        per_byte: values that share an element of the tensor.
    """

    name: str
    dtypes: tuple[torch.dtype, ...]
    scale_dtypes: tuple[torch.dtype, ...]
    per_byte: int = 1


FORMATS = {
    one.name: one
    for one in (
        Format("float", _FLOATS, ()),
        Format("int8", (torch.int8,), _CHANNEL_SCALES),
        Format("int4", (torch.uint8,), _CHANNEL_SCALES, per_byte=2),
        Format("fp8_block", (torch.float8_e4m3fn,), (torch.float32, torch.uint8)),
        Format("mxfp8", (torch.float8_e4m3fn,), _POWERS),
        Format("mxfp4", (torch.uint8,), _POWERS, per_byte=2),
    )
}
"""By name."""

TAKES_ROWS = {
    "int8": ("int8", "float"),
    "int4": ("int8", "float"),
    "fp8_block": ("fp8_block", "float"),
    "mxfp8": ("mxfp8", "float"),
    "mxfp4": ("mxfp4", "mxfp8", "float"),
}
"""The formats of rows that go with each format of weights."""


def plain_scale(scale: torch.Tensor) -> torch.Tensor:
    """The scale, float8_e8m0fnu seen as its bits."""
    return scale.view(torch.uint8) if scale.dtype == torch.float8_e8m0fnu else scale


def unpacked_int4(packed: torch.Tensor) -> torch.Tensor:
    """``[..., K]`` int8 from int4 ``[..., K / 2]`` uint8."""
    codes = _unpacked(packed).to(torch.int8)
    return codes - ((codes & _INT4_SIGN) << 1)


def unpacked_fp4(packed: torch.Tensor) -> torch.Tensor:
    """``[..., K]`` float8_e4m3fn, which holds every FP4 value, from ``[..., K / 2]`` uint8."""
    return e2m1_values(_unpacked(packed)).to(torch.float8_e4m3fn)


def _unpacked(packed: torch.Tensor) -> torch.Tensor:
    return torch.stack((packed & 0xF, packed >> 4), dim=-1).flatten(-2)


def check_rows(
    x: torch.Tensor, scale: torch.Tensor | None, name: str, columns: int
) -> torch.Tensor | None:
    """Refuse rows that are not stored as ``name`` says.

    Args:
        x: ``[M, K]`` or, with two values in a byte, ``[M, K / 2]``.
        scale: of the rows.
        name: a key of :data:`FORMATS`.
        columns: ``K``.

    Returns:
        The scale, as :func:`plain_scale` gives it.

    Raises:
        InvalidInputError: another dtype or shape.
    """
    form = FORMATS[name]
    wanted = (x.shape[0], columns // form.per_byte)
    _check_tensor("rows", x, form.dtypes, wanted, name)
    if not form.scale_dtypes:
        if scale is not None:
            raise InvalidInputError(
                f"a scale of {name} rows", "float rows have none", "Leave it out."
            )
        return None
    if scale is None:
        raise InvalidInputError(
            f"{name} rows without a scale", "quantised rows have one", "Pass it with the rows."
        )
    scale = plain_scale(scale)
    scale_dtypes = (torch.float32,) if name == "int8" else form.scale_dtypes
    _check_tensor("the rows' scale", scale, scale_dtypes, _row_scales(name, x, columns), name)
    return scale


def check_weight(
    weight: torch.Tensor, scale: torch.Tensor, name: str, columns: int
) -> torch.Tensor:
    """Refuse weights that are not stored as ``name`` says.

    Args:
        weight: ``[G, N, K]`` or, with two values in a byte, ``[G, N, K / 2]``.
        scale: of the weights.
        name: a key of :data:`TAKES_ROWS`.
        columns: ``K``.

    Returns:
        The scale, as :func:`plain_scale` gives it.

    Raises:
        InvalidInputError: another dtype or shape.
    """
    form = FORMATS[name]
    groups, outputs = weight.shape[:2]
    if name in ("mxfp8", "mxfp4") and (columns % BLOCK or not columns):
        raise InvalidInputError(
            f"weights of {columns} columns in {name}",
            f"blocks of {BLOCK} fill a row",
            "Choose a tensor-parallel size that leaves whole blocks, or another format.",
        )
    wanted = (groups, outputs, columns // form.per_byte)
    _check_tensor("weights", weight, form.dtypes, wanted, name)
    scale = plain_scale(scale)
    if name == "fp8_block":
        shape = (groups, *scale_shape(torch.Size((outputs, columns)), COLUMNS))
    elif name in ("mxfp8", "mxfp4"):
        shape = (groups, outputs, columns // BLOCK)
    elif name == "int4" and scale.dim() == 3 and scale.shape[2] and not columns % scale.shape[2]:
        shape = (groups, outputs, scale.shape[2])
    else:
        shape = (groups, outputs)
    _check_tensor("the weights' scale", scale, form.scale_dtypes, shape, name)
    return scale


def _row_scales(name: str, x: torch.Tensor, columns: int) -> tuple[int, ...]:
    if name == "int8":
        return (x.shape[0],)
    share = COLUMNS if name == "fp8_block" else BLOCK
    return (x.shape[0], -(-columns // share))


def _check_tensor(
    what: str,
    tensor: torch.Tensor,
    dtypes: tuple[torch.dtype, ...],
    shape: tuple[int, ...],
    name: str,
) -> None:
    if tensor.dtype not in dtypes or tuple(tensor.shape) != shape:
        names = " or ".join(str(one).removeprefix("torch.") for one in dtypes)
        raise InvalidInputError(
            f"{what} of {tensor.dtype} and shape {list(tensor.shape)}",
            f"the format {name} wants {names} {list(shape)}",
            "Pass values and scales as they were quantised, or name their format.",
        )
