"""How the experts of a layer are quantised: the mode, its types, and what microscaling adds.

=============  ==========  ===========  =========================================================
mode           weights     rows         used by
=============  ==========  ===========  =========================================================
``none``       float       float
``w8a8``       int8        int8         per channel and per token, on every family
``w4a8``       int4        int8         per channel or per group of columns, and per token
``fp8_block``  fp8_block   fp8_block    DeepSeek's 128 x 128 blocks; A5 and CPUs
``mxfp8``      mxfp8       mxfp8        microscaling; A5 and CPUs
``mxfp4``      mxfp4       mxfp4        microscaling of both; A5 and CPUs
``w4a8_mxfp``  mxfp4       mxfp8        DeepSeek-V4's own experts; CPUs
``w4a16_mxfp`` mxfp4       float        gpt-oss; CPUs
``w8a16``      int8        float        what CPUs make of ``w8a8``: rows stay as they are
``w4a16``      int4        float        the same of ``w4a8``
``fp8_a16``    fp8_block   float        the same of ``fp8_block``
``mxfp8_a16``  mxfp8       float        the same of ``mxfp8``
=============  ==========  ===========  =========================================================

The formats are those of :mod:`ascend_fused_moe.ops.grouped_mlp.formats`.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

import torch
from ascend_ops_core.devices import DeviceFacts
from ascend_ops_core.errors import InvalidInputError
from ascend_ops_core.ops.quantization.mx import BLOCK

from ascend_fused_moe.ops.grouped_mlp.formats import FORMATS

__all__ = ["MoEMxfpParams", "MoEQuantParams", "QuantMode", "build_quant_params"]


class QuantMode(Enum):
    """What is quantised to what; the value is its name in configurations."""

    NONE = "none"
    W8A8 = "w8a8"
    W4A8 = "w4a8"
    FP8_BLOCK = "fp8_block"
    MXFP8 = "mxfp8"
    MXFP4 = "mxfp4"
    W4A8_MXFP = "w4a8_mxfp"
    W4A16_MXFP = "w4a16_mxfp"
    W8A16 = "w8a16"
    W4A16 = "w4a16"
    FP8_A16 = "fp8_a16"
    MXFP8_A16 = "mxfp8_a16"


_FORMATS = {
    QuantMode.NONE: ("float", "float"),
    QuantMode.W8A8: ("int8", "int8"),
    QuantMode.W4A8: ("int4", "int8"),
    QuantMode.FP8_BLOCK: ("fp8_block", "fp8_block"),
    QuantMode.MXFP8: ("mxfp8", "mxfp8"),
    QuantMode.MXFP4: ("mxfp4", "mxfp4"),
    QuantMode.W4A8_MXFP: ("mxfp4", "mxfp8"),
    QuantMode.W4A16_MXFP: ("mxfp4", "float"),
    QuantMode.W8A16: ("int8", "float"),
    QuantMode.W4A16: ("int4", "float"),
    QuantMode.FP8_A16: ("fp8_block", "float"),
    QuantMode.MXFP8_A16: ("mxfp8", "float"),
}


@dataclass(frozen=True)
class MoEMxfpParams:
    """What microscaling needs to know besides the mode.

    Attributes:
        block: columns that share a power of two; OCP MX v1.0 has 32.
        scale_dtype: in which the checkpoint stores powers of two.

    Raises:
        InvalidInputError: another block, or another dtype than uint8 and float8_e8m0fnu.
    """

    block: int = BLOCK
    scale_dtype: torch.dtype = torch.uint8

    def __post_init__(self) -> None:
        if self.block != BLOCK:
            raise InvalidInputError(
                f"block={self.block}",
                f"microscaling shares a power of two among {BLOCK} columns (OCP MX v1.0)",
                "Quantise the checkpoint in such blocks.",
            )
        if self.scale_dtype not in (torch.uint8, torch.float8_e8m0fnu):
            raise InvalidInputError(
                f"scale_dtype={self.scale_dtype}",
                "powers of two are uint8 or float8_e8m0fnu",
                "Convert the scales.",
            )


@dataclass(frozen=True)
class MoEQuantParams:
    """The quantisation of a layer's experts.

    Attributes:
        mode: what is quantised to what.
        mxfp: of the modes with microscaling, else None.
        group_size: of int4 weights: columns that share a scale; None for one scale for each
            channel.

    Raises:
        InvalidInputError: ``mxfp`` or ``group_size`` in a mode that has none, or a group size that
            is not positive and even.
    """

    mode: QuantMode = QuantMode.NONE
    mxfp: MoEMxfpParams | None = None
    group_size: int | None = None

    def __post_init__(self) -> None:
        if (self.mxfp is not None) != self.is_mxfp:
            state = "without" if self.is_mxfp else "with"
            raise InvalidInputError(
                f"mode {self.mode.value!r} {state} MoEMxfpParams",
                "the modes with microscaling have them, and no other",
                "Use build_quant_params.",
            )
        if self.group_size is None:
            return
        if self.weights != "int4":
            raise InvalidInputError(
                f"group_size={self.group_size} in mode {self.mode.value!r}",
                "w4a8 and w4a16 alone have groups of columns",
                "Leave it out.",
            )
        if self.group_size < 2 or self.group_size % 2:
            raise InvalidInputError(
                f"group_size={self.group_size}",
                "a group has an even number of columns, since two share a byte",
                "Quantise the checkpoint in such groups.",
            )

    @property
    def weights(self) -> str:
        """The format of the weights."""
        return _FORMATS[self.mode][0]

    @property
    def rows(self) -> str:
        """The format of the rows that meet the weights."""
        return _FORMATS[self.mode][1]

    @property
    def is_quant(self) -> bool:
        """Whether anything is quantised."""
        return self.mode is not QuantMode.NONE

    @property
    def is_int_quant(self) -> bool:
        """Whether the products are of integers."""
        return self.mode in (QuantMode.W8A8, QuantMode.W4A8)

    @property
    def is_fp8(self) -> bool:
        """Whether rows and weights are 8-bit floats, in blocks or microscaled."""
        return self.mode in (QuantMode.FP8_BLOCK, QuantMode.MXFP8)

    @property
    def is_mxfp(self) -> bool:
        """Whether the weights are microscaled."""
        return self.weights in ("mxfp8", "mxfp4")

    @property
    def is_w4a4_mxfp(self) -> bool:
        """Whether rows and weights are microscaled FP4."""
        return self.mode is QuantMode.MXFP4

    @property
    def use_w4a8_per_channel_gmm_swiglu(self) -> bool:
        """Whether it is int4 with one scale for each channel."""
        return self.mode is QuantMode.W4A8 and self.group_size is None

    def get_dst_type(self) -> torch.dtype | None:
        """The dtype of quantised rows; None where rows stay float."""
        return None if self.rows == "float" else FORMATS[self.rows].dtypes[0]

    def get_scale_type(self) -> torch.dtype | None:
        """The dtype of the scales of quantised rows; None where rows stay float."""
        if self.rows == "float":
            return None
        return torch.uint8 if self.rows in ("mxfp8", "mxfp4") else torch.float32

    def check_device(self, facts: DeviceFacts) -> None:
        """Refuse a device family whose data types do not hold the mode.

        Raises:
            InvalidInputError: rows or weights are float8, or FP4, and the family has none.
        """
        has = facts.dtypes.value or ()
        if torch.float8_e4m3fn in has:
            return
        if "int" not in self.weights and self.is_quant:
            raise InvalidInputError(
                f"mode {self.mode.value!r} on {facts.family}",
                f"{facts.family} has neither float8 nor FP4",
                "Use A5, or a checkpoint with int8 experts (w8a8).",
            )


def build_quant_params(
    mode: QuantMode | str,
    *,
    group_size: int | None = None,
    mxfp_block: int | None = None,
    mxfp_scale_dtype: torch.dtype | None = None,
) -> MoEQuantParams:
    """Quantisation parameters from what a checkpoint's configuration says.

    Args:
        mode: a :class:`QuantMode`, or its name.
        group_size: of int4 weights: columns that share a scale; None or 0 for one for each
            channel.
        mxfp_block: of microscaling; None for 32.
        mxfp_scale_dtype: of microscaling; None for uint8.

    Raises:
        InvalidInputError: an unknown mode, or an argument that the mode does not have.
    """
    known = {one.value: one for one in QuantMode}
    if not isinstance(mode, QuantMode):
        if mode not in known:
            raise InvalidInputError(
                f"quantisation mode {mode!r}",
                f"known are {', '.join(known)}",
                "Correct the checkpoint's quantisation config.",
            )
        mode = known[mode]
    mxfp = _build_mxfp_params(mode, mxfp_block, mxfp_scale_dtype)
    return MoEQuantParams(mode, mxfp, group_size or None)


def _build_mxfp_params(
    mode: QuantMode, block: int | None, scale_dtype: torch.dtype | None
) -> MoEMxfpParams | None:
    if _FORMATS[mode][0] not in ("mxfp8", "mxfp4"):
        if block is not None or scale_dtype is not None:
            raise InvalidInputError(
                f"a block or scale dtype of microscaling in mode {mode.value!r}",
                "it has no microscaling",
                "Leave them out.",
            )
        return None
    return MoEMxfpParams(
        BLOCK if block is None else block, torch.uint8 if scale_dtype is None else scale_dtype
    )
