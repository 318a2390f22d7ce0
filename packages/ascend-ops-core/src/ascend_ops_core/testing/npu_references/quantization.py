"""Quantisation."""

from __future__ import annotations

import torch

from ascend_ops_core.testing.npu_references.limits import (
    FLOATS,
    FP4_E2M1,
    HALVES,
    family,
    require,
    require_dtype,
    require_family,
    require_rank,
    target_dtype,
)
from ascend_ops_core.testing.npu_references.registry import reference
from ascend_ops_core.testing.npu_references.rounding import (
    INT4_LARGEST,
    LARGEST,
    divided,
    narrowed,
    packed_fp4,
    packed_int4,
)

INT4_CODES = (16, 285)
"""torch.quint4x2 and torch_npu.int4."""

_MX_EXPONENTS = {torch.float8_e4m3fn: 8, torch.float8_e5m2: 15}
_FP4_EXPONENT = 2
_BLOCK = 32
_BLOCK_QUANT_COLUMNS = 128


@reference("npu_dynamic_quant", documented=("A2", "A3"))
def npu_dynamic_quant(
    input: torch.Tensor,
    *,
    smooth_scales: torch.Tensor | None = None,
    group_index: torch.Tensor | None = None,
    dst_type: int | None = None,
    quant_mode: str = "pertoken",
    dst_type_max: float = 0.0,
) -> tuple[torch.Tensor, torch.Tensor]:
    """``scale = max |row| / largest; y = round(row / scale)``, rows times ``smooth_scales`` first.

    Returns y [..., n] and float32 scales [...]. With ``group_index`` (ends of groups of rows),
    ``smooth_scales`` has one row for each group.

    Limits: float16, bfloat16, at least 2 dimensions; int4 (8 in an int32) needs n a multiple of 8;
    A2 and A3: int8 and int4.

    Assumed: a row of zeros gives 0 with scale 0; float8 targets on A5 work the same way;
    ``quant_mode`` other than "pertoken" and ``dst_type_max`` are not modelled.
    """
    op = "npu_dynamic_quant"
    require_dtype(op, "input", input, HALVES)
    require(input.dim() >= 2, op, f"input of {input.dim()} dimensions", "at least 2")
    require(quant_mode == "pertoken", op, f"quant_mode={quant_mode!r}", "'pertoken' is modelled")
    require(dst_type_max == 0.0, op, f"dst_type_max={dst_type_max}", "0 is modelled")
    require_dtype(op, "smooth_scales", smooth_scales, HALVES)
    wide = input.float()
    if smooth_scales is not None:
        wide = wide * _smoothing(op, input, smooth_scales, group_index)
    if dst_type in INT4_CODES:
        require(input.shape[-1] % 8 == 0, op, f"last size {input.shape[-1]}", "a multiple of 8")
        scale = wide.abs().amax(-1) / INT4_LARGEST
        return packed_int4(divided(wide, scale[..., None])), scale
    targets = tuple(LARGEST) if family() == "A5" else (torch.int8,)
    dtype = target_dtype(op, dst_type, targets)
    return quantized_rows(wide, dtype)


def quantized_rows(wide: torch.Tensor, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    """Quantise rows of float32 symmetrically; returns them and float32 scales."""
    scale = wide.abs().amax(-1) / LARGEST[dtype]
    return narrowed(divided(wide, scale[..., None]), dtype), scale


def _smoothing(
    op: str, x: torch.Tensor, scales: torch.Tensor, group_index: torch.Tensor | None
) -> torch.Tensor:
    n = x.shape[-1]
    if group_index is None:
        require(tuple(scales.shape) == (n,), op, f"smooth_scales {list(scales.shape)}", f"[{n}]")
        return scales.float()
    rows = x.numel() // n
    ends = group_index.tolist()
    wanted = (len(ends), n)
    require(tuple(scales.shape) == wanted, op, f"smooth_scales {list(scales.shape)}", f"{wanted}")
    rising = ends == sorted(ends) and ends[-1] == rows
    require(rising, op, f"group_index={ends}", f"it rises and ends with the {rows} rows")
    sizes = torch.tensor([end - start for start, end in zip([0, *ends], ends, strict=False)])
    return scales.float().repeat_interleave(sizes, 0).view(x.shape)


@reference("npu_dynamic_block_quant", documented=("A2", "A3"))
def npu_dynamic_block_quant(
    x: torch.Tensor,
    *,
    min_scale: float = 0.0,
    round_mode: str = "rint",
    dst_type: int = 1,
    row_block_size: int = 1,
    col_block_size: int = 128,
    dst_type_max: float = 0.0,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Symmetric quantisation of blocks of rows and columns, one float32 scale for each.

    Limits: float16, bfloat16; 2 or 3 dimensions; "rint"; on A2 and A3 int8 in blocks of 1 x 128.

    Assumed: ``scale = max(max |block| / largest, min_scale)``; a block of zeros gives 0; A5 takes
    float8 targets and row blocks of 1, 128, 256 and 512; ``dst_type_max`` is not modelled.
    """
    op = "npu_dynamic_block_quant"
    require_dtype(op, "x", x, HALVES)
    require_rank(op, "x", x, 2, 3)
    require(min_scale >= 0, op, f"min_scale={min_scale}", "at least 0")
    require(round_mode == "rint", op, f"round_mode={round_mode!r}", "'rint'")
    require(dst_type_max == 0.0, op, f"dst_type_max={dst_type_max}", "0 is modelled")
    columns = col_block_size == _BLOCK_QUANT_COLUMNS
    require(columns, op, f"col_block_size={col_block_size}", f"{_BLOCK_QUANT_COLUMNS}")
    if family() == "A5":
        dtype = target_dtype(op, dst_type, (torch.float8_e4m3fn, torch.float8_e5m2))
        row_blocks: tuple[int, ...] = (1, 128, 256, 512)
    else:
        dtype = target_dtype(op, dst_type, (torch.int8,))
        row_blocks = (1,)
    require(row_block_size in row_blocks, op, f"row_block_size={row_block_size}", f"{row_blocks}")
    rows, width = x.shape[-2:]
    padding = (0, -width % col_block_size, 0, -rows % row_block_size)
    padded = torch.nn.functional.pad(x.float(), padding)
    blocks = padded.unflatten(-1, (-1, col_block_size)).unflatten(-3, (-1, row_block_size))
    scale = (blocks.abs().amax((-1, -3)) / LARGEST[dtype]).clamp(min=min_scale)
    spread = scale.repeat_interleave(row_block_size, -2).repeat_interleave(col_block_size, -1)
    return narrowed(divided(x.float(), spread[..., :rows, :width]), dtype), scale


@reference("npu_dynamic_mx_quant", documented=("A5",))
def npu_dynamic_mx_quant(
    input: torch.Tensor,
    *,
    axis: int = -1,
    round_mode: str = "rint",
    dst_type: int = FP4_E2M1,
    block_size: int = 32,
    scale_alg: int = 0,
    dst_type_max: float = 0.0,
    max_low_bound: float = 0.0,
) -> tuple[torch.Tensor, torch.Tensor]:
    """OCP microscaling along the last axis: blocks of 32 share a power of two.

    Returns float8 values of the input's shape, or FP4 with 2 in a uint8, and the exponents plus 127
    as uint8 [..., ceil(blocks / 2), 2].

    Limits: 1 to 7 dimensions; float16, bfloat16, float32; FP4 needs an even last size; float32 at
    least 32 values. Modelled: last axis, "rint", block 32, scale_alg 0, float8 and FP4 E2M1.

    Assumed: the exponent is ``floor(log2(max |block|))`` less that of the largest value of the
    format, at least -127; values beyond the format saturate; the odd half of a last pair of
    exponents is 0; the first FP4 value is in the low bits.
    """
    op = "npu_dynamic_mx_quant"
    require_family(op, "A5")
    require_dtype(op, "input", input, FLOATS)
    require_rank(op, "input", input, 1, 7)
    require(axis in (-1, input.dim() - 1), op, f"axis={axis}", "the last one is modelled")
    plain = (round_mode, block_size, scale_alg, dst_type_max, max_low_bound)
    require(plain == ("rint", _BLOCK, 0, 0.0, 0.0), op, f"options {plain}", "defaults are modelled")
    width = input.shape[-1]
    if input.dtype == torch.float32:
        require(width >= _BLOCK, op, f"last size {width}", f"at least {_BLOCK} for float32")
    fp4 = dst_type == FP4_E2M1
    if fp4:
        require(width % 2 == 0, op, f"last size {width}", "even for FP4")
        exponent_of_largest = _FP4_EXPONENT
    else:
        dtype = target_dtype(op, dst_type, tuple(_MX_EXPONENTS))
        exponent_of_largest = _MX_EXPONENTS[dtype]
    padded = torch.nn.functional.pad(input.float(), (0, -width % _BLOCK))
    blocks = padded.unflatten(-1, (-1, _BLOCK))
    largest = blocks.abs().amax(-1)
    # frexp gives a fraction in [0.5, 1), so its exponent is one more than floor(log2).
    exponent = (torch.frexp(largest).exponent - 1 - exponent_of_largest).clamp(-127, 127)
    exponent = torch.where(largest == 0, -127, exponent)
    scaled = torch.ldexp(blocks, -exponent[..., None]).flatten(-2)[..., :width]
    biased = torch.nn.functional.pad((exponent + 127).to(torch.uint8), (0, exponent.shape[-1] % 2))
    mx_scale = biased.unflatten(-1, (-1, 2))
    return (packed_fp4(scaled) if fp4 else narrowed(scaled, dtype)), mx_scale


@reference("npu_quantize", documented=("A2", "310P"))
def npu_quantize(
    self: torch.Tensor,
    scales: torch.Tensor,
    zero_points: torch.Tensor | None,
    dtype: int,
    axis: int = 1,
    div_mode: bool = True,
) -> torch.Tensor:
    """``x / scales + zero_points`` or, without ``div_mode``, ``x * scales + zero_points``.

    Limits: float32, float16, bfloat16. ``div_mode``: scales float32 or bfloat16; zero points int8,
    uint8, int32 or bfloat16; to qint8, quint8, int32. Else: scales float32, float16, bfloat16, zero
    points as scales; to qint8 or quint4x2 (8 in an int32); axis -2 means the last but one, others
    the last.

    Assumed: rounding is half to even, after the zero point is added; results saturate.
    """
    op = "npu_quantize"
    require_dtype(op, "self", self, FLOATS)
    points = (torch.int8, torch.uint8, torch.int32, torch.bfloat16)
    if div_mode:
        require_dtype(op, "scales", scales, (torch.float32, torch.bfloat16))
        require_dtype(op, "zero_points", zero_points, points)
        targets = {12: torch.int8, 1: torch.int8, 13: torch.uint8, 0: torch.uint8, 3: torch.int32}
    else:
        require_dtype(op, "scales", scales, FLOATS)
        require_dtype(op, "zero_points", zero_points, (scales.dtype,))
        require(-2 <= axis < self.dim(), op, f"axis={axis}", f"-2 to {self.dim() - 1}")
        axis = -2 if axis == -2 else -1
        targets = {12: torch.int8, 1: torch.int8}
        if dtype in INT4_CODES:
            require(self.shape[-1] % 8 == 0, op, f"last size {self.shape[-1]}", "multiple of 8")
            values = self.float() * _along(op, self, scales, axis)
            if zero_points is not None:
                values = values + _along(op, self, zero_points, axis)
            return packed_int4(values)
    require(dtype in targets, op, f"dtype={dtype}", "qint8, quint8, int32; else qint8, quint4x2")
    factor = _along(op, self, scales, axis)
    values = self.float() / factor if div_mode else self.float() * factor
    if zero_points is not None:
        values = values + _along(op, self, zero_points, axis)
    return narrowed(values, targets[dtype])


def _along(op: str, x: torch.Tensor, values: torch.Tensor, axis: int) -> torch.Tensor:
    if values.dim() == 1:
        fits = values.shape[0] in (1, x.shape[axis])
        require(fits, op, f"{values.shape[0]} scales", f"1 or {x.shape[axis]}")
        shape = [1] * x.dim()
        shape[axis] = -1
        return values.float().view(shape)
    wanted = [1] * x.dim()
    wanted[axis] = x.shape[axis]
    fits = values.dim() == x.dim() and list(values.shape) in (wanted, [1] * x.dim())
    require(fits, op, f"scales {list(values.shape)}", f"{wanted}")
    return values.float()
