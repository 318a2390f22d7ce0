"""Norms that quantise their result."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from ascend_ops_core.testing.npu_references.limits import (
    HALVES,
    require,
    require_dtype,
    require_filled,
    require_rank,
    require_same,
)
from ascend_ops_core.testing.npu_references.norm import normalize, normalized_dims
from ascend_ops_core.testing.npu_references.quantization import INT4_CODES, quantized_rows
from ascend_ops_core.testing.npu_references.registry import reference
from ascend_ops_core.testing.npu_references.rounding import (
    INT4_LARGEST,
    divided,
    narrowed,
    packed_int4,
)


@reference("npu_add_rms_norm_dynamic_quant", documented=("A2", "A3"))
def npu_add_rms_norm_dynamic_quant(
    x1: torch.Tensor,
    x2: torch.Tensor,
    gamma: torch.Tensor,
    *,
    smooth_scale1: torch.Tensor | None = None,
    smooth_scale2: torch.Tensor | None = None,
    beta: torch.Tensor | None = None,
    epsilon: float = 1e-6,
    output_mask: Sequence[bool] | None = None,
    y_dtype: int | None = None,
) -> tuple[torch.Tensor, ...]:
    """RMS norm of ``x1 + x2`` (plus beta), quantised by row once or with two smoothings.

    Returns y1, y2, the sum, and the scales of y1 and y2; a result that is not wanted is empty.

    Limits: float16, bfloat16; 2 to 8 dimensions; gamma [n], beta and smoothings alike; nothing
    empty; smooth_scale2 only together with smooth_scale1; a given mask is True for every given
    smoothing and not False for both; int8, or int4 (8 in an int32).

    Assumed: the norm is not rounded before it is quantised; the sum is rounded first; rows of zeros
    give 0 with scale 0.
    """
    op = "npu_add_rms_norm_dynamic_quant"
    total = _sum(op, x1, x2, gamma, 2)
    require_rank(op, "gamma", gamma, 1, 1)
    for name, one in (("beta", beta), ("smooth1", smooth_scale1), ("smooth2", smooth_scale2)):
        require_same(op, name, one, gamma)
    if output_mask is None:
        alone = smooth_scale2 is not None and smooth_scale1 is None
        require(not alone, op, "smooth_scale2 without smooth_scale1", "it needs the other")
        wanted = (True, smooth_scale2 is not None)
    else:
        wanted = (bool(output_mask[0]), bool(output_mask[1]))
        given = (smooth_scale1 is not None, smooth_scale2 is not None)
        consistent = any(wanted) and all(w or not g for w, g in zip(wanted, given, strict=True))
        require(consistent, op, f"output_mask={wanted}", "True for each given smoothing, one True")
    require(y_dtype in (None, 1, *INT4_CODES), op, f"y_dtype={y_dtype}", "int8 or quint4x2")
    normed = _weighted(op, total, gamma, beta, epsilon)
    values, scales = [], []
    for use, smooth in zip(wanted, (smooth_scale1, smooth_scale2), strict=True):
        smoothed = normed if smooth is None else normed * smooth.float()
        if y_dtype in INT4_CODES:
            scale = smoothed.abs().amax(-1) / INT4_LARGEST
            y = packed_int4(divided(smoothed, scale[..., None]))
        else:
            y, scale = quantized_rows(smoothed, torch.int8)
        values.append(y if use else y.new_empty(0))
        scales.append(scale if use else scale.new_empty(0))
    return (*values, total, *scales)


@reference("npu_add_rms_norm_quant", documented=("A2", "A3", "310P"))
def npu_add_rms_norm_quant(
    x1: torch.Tensor,
    x2: torch.Tensor,
    gamma: torch.Tensor,
    scales1: torch.Tensor,
    zero_points1: torch.Tensor | None,
    beta: torch.Tensor | None = None,
    scales2: torch.Tensor | None = None,
    zero_points2: torch.Tensor | None = None,
    *,
    axis: int = -1,
    epsilon: float = 1e-6,
    div_mode: bool = True,
    dst_type: int | None = None,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """RMS norm of ``x1 + x2`` (plus beta), quantised with given scales; returns y1, y2, the sum.

    Limits: float16, bfloat16; scales float32 or bfloat16, zero points int32 or bfloat16, all of
    gamma's shape; axis -1; int8.

    Assumed: ``y = round(norm / scale + zero)``, or ``norm * scale`` without div_mode; the norm is
    not rounded before; without scales2, y2 is undefined, here zero.
    """
    op = "npu_add_rms_norm_quant"
    total = _sum(op, x1, x2, gamma, 1)
    require(axis == -1, op, f"axis={axis}", "-1")
    require(dst_type in (None, 1), op, f"dst_type={dst_type}", "int8")
    require_same(op, "beta", beta, gamma)
    normed = _weighted(op, total, gamma, beta, epsilon)
    results = []
    for scales, zeros in ((scales1, zero_points1), (scales2, zero_points2)):
        require_dtype(op, "scales", scales, (torch.float32, torch.bfloat16))
        require_dtype(op, "zero_points", zeros, (torch.int32, torch.bfloat16))
        for one in (scales, zeros):
            shaped = one is None or one.shape == gamma.shape
            require(shaped, op, "scales or zero points", f"of gamma's shape {list(gamma.shape)}")
        if scales is None:
            results.append(torch.zeros(total.shape, dtype=torch.int8))
            continue
        values = normed / scales.float() if div_mode else normed * scales.float()
        results.append(narrowed(values if zeros is None else values + zeros.float(), torch.int8))
    return results[0], results[1], total


@reference("npu_rms_norm_quant", documented=("A2", "A3"))
def npu_rms_norm_quant(
    x: torch.Tensor,
    gamma: torch.Tensor,
    beta: torch.Tensor,
    scale: torch.Tensor,
    offset: torch.Tensor,
    epsilon: float = 1e-6,
    *,
    dst_dtype: int | None = None,
) -> torch.Tensor:
    """RMS norm plus beta, quantised to int8 with one scale and offset.

    Limits: float16, bfloat16; 1 to 8 dimensions; gamma 1 or 2 dimensions; scale and offset [1];
    nothing empty; rows of at least 32 bytes.

    Assumed: ``y = round(norm / scale + offset)``; beta has gamma's shape, where the documentation
    says x's; gamma of 2 dimensions is [1, n].
    """
    op = "npu_rms_norm_quant"
    require_dtype(op, "x", x, HALVES)
    require_rank(op, "x", x, 1, 8)
    require_rank(op, "gamma", gamma, 1, 2)
    require_dtype(op, "gamma", gamma, (x.dtype,))
    require_same(op, "beta", beta, gamma)
    require_filled(op, x=x, gamma=gamma, beta=beta, scale=scale, offset=offset)
    require(dst_dtype in (None, 1), op, f"dst_dtype={dst_dtype}", "int8 is modelled")
    single = scale.numel() == 1 and offset.numel() == 1
    require(single, op, f"{scale.numel()} scales, {offset.numel()} offsets", "one of each")
    width = x.shape[-1] * x.element_size()
    require(width >= 32, op, f"rows of {width} bytes", "at least 32")
    normed = _weighted(op, x, gamma.flatten(), beta.flatten(), epsilon)
    return narrowed(normed / scale.float() + offset.float(), torch.int8)


def _sum(
    op: str, x1: torch.Tensor, x2: torch.Tensor, gamma: torch.Tensor, low: int
) -> torch.Tensor:
    require_dtype(op, "x1", x1, HALVES)
    require_rank(op, "x1", x1, low, 8)
    require_same(op, "x2", x2, x1)
    require_dtype(op, "gamma", gamma, (x1.dtype,))
    require_filled(op, x1=x1, gamma=gamma)
    return (x1.float() + x2.float()).to(x1.dtype)


def _weighted(
    op: str, x: torch.Tensor, gamma: torch.Tensor, beta: torch.Tensor | None, epsilon: float
) -> torch.Tensor:
    normed, _ = normalize(x.float(), normalized_dims(op, x, gamma), epsilon)
    weighted = normed * gamma.float()
    return weighted if beta is None else weighted + beta.float()
