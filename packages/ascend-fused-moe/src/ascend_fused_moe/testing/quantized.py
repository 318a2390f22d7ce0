"""Weights in every format that experts have, and how far each may be from what it stands for."""

from __future__ import annotations

from collections.abc import Callable

import torch
from ascend_ops_core.ops.quantization import (
    block_quantize,
    dynamic_quantize,
    fp4_pack,
    mxfp4_quantize,
    mxfp8_quantize,
)

__all__ = ["FORMAT_ERRORS", "quantized_weight", "relative_error"]

FORMAT_ERRORS = {
    "w8a8": 0.025,
    "w4a8": 0.30,
    "fp8_block": 0.095,
    "mxfp8": 0.12,
    "w4a8_mxfp": 0.32,
    "w4a16_mxfp": 0.32,
    "w8a16": 0.018,
    "w4a16": 0.30,
    "fp8_a16": 0.068,
    "mxfp8_a16": 0.086,
    "mxfp4": 0.42,
}
"""By quantisation mode: ``|y - float y| / |float y|`` (Frobenius) of experts with normal weights
and rows.

A value is off by a step of its format over ``sqrt(12)``, relative to its size: ``e = 0.7 %`` for
int8 with rows scaled to 3 standard deviations, 2.6 % for float8 with 3 bits behind the point, more
where microscaling saturates, 12 % for FP4 and for int4 with 7 steps to the largest value. A product
of such rows and weights is off by ``sqrt(2) * e``; SwiGLU multiplies two of its results and makes
that about 1.7 times as much; the second product adds its own rows and weights. Together that is
``2.8 * e``, or ``2 * e`` where rows are much finer than weights; the bars are a quarter above."""

_INT4_LARGEST = 7


def relative_error(actual: torch.Tensor, expected: torch.Tensor) -> float:
    """``|actual - expected| / |expected|``, Frobenius norms in float64."""
    difference = (actual.double() - expected.double()).norm()
    return float(difference / expected.double().norm())


def quantized_weight(
    weight: torch.Tensor, name: str, *, group_size: int | None = None, powers: bool = False
) -> tuple[torch.Tensor, torch.Tensor]:
    """Stacked weights as a checkpoint has them.

    Args:
        weight: ``[E, N, K]`` float32.
        name: a format of :mod:`ascend_fused_moe.ops.grouped_mlp.formats`.
        group_size: of ``int4``.
        powers: of ``fp8_block``: scales are powers of two.

    Returns:
        Values and scales, stacked.
    """
    quantize: Callable[[torch.Tensor], tuple[torch.Tensor, torch.Tensor]]
    if name == "int8":
        quantize = dynamic_quantize
    elif name == "int4":
        return _int4(weight, group_size)
    elif name == "fp8_block":
        dtype = torch.uint8 if powers else torch.float32
        parts = [block_quantize(one, rows=128, scale_dtype=dtype) for one in weight]
        return torch.stack([one[0] for one in parts]), torch.stack([one[1] for one in parts])
    else:
        quantize = {"mxfp8": mxfp8_quantize, "mxfp4": mxfp4_quantize}[name]
    return quantize(weight)


def _int4(weight: torch.Tensor, group_size: int | None) -> tuple[torch.Tensor, torch.Tensor]:
    shares = weight.unflatten(-1, (-1, group_size or weight.shape[-1]))
    scale = shares.abs().amax(-1) / _INT4_LARGEST
    codes = (shares / torch.where(scale > 0, scale, 1.0)[..., None]).round().flatten(-2)
    packed = fp4_pack((codes.to(torch.int8) & 0xF).to(torch.uint8))
    return packed, scale if group_size else scale.squeeze(-1)
