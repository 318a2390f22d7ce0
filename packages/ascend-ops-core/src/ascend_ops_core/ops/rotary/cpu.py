"""Rotation of leading or trailing channels for a CPU, alone or after an RMS norm."""

from __future__ import annotations

import numpy as np
import torch
from numba import njit, prange

from ascend_ops_core.cpu_numeric import FASTMATH, as_numpy, bf16_to_f32, f32_to_bf16

_PARALLEL_FROM = 1 << 15
_NO_WEIGHT = np.zeros(0, dtype=np.float32)


def supports(x: torch.Tensor, weight: torch.Tensor | None = None) -> bool:
    """Contiguous float32 or bfloat16 heads, float32 weight."""
    return (
        x.dim() == 3
        and x.numel() > 0
        and x.dtype in (torch.float32, torch.bfloat16)
        and x.is_contiguous()
        and (
            weight is None
            or (
                weight.dtype == torch.float32
                and weight.is_contiguous()
                and weight.shape == x.shape[-1:]
            )
        )
    )


def rotary(
    x: torch.Tensor,
    cos: torch.Tensor,
    sin: torch.Tensor,
    interleaved: bool,
    at_end: bool,
    inverse: bool,
) -> torch.Tensor:
    """See :func:`ascend_ops_core.ops.rotary.apply_rotary`."""
    first = x.shape[-1] - 2 * cos.shape[-1] if at_end else 0
    sign = -1.0 if inverse else 1.0
    return _run(x, _NO_WEIGHT, False, 0.0, cos, sin, sign, first, interleaved)


def rms_norm_rotary(
    x: torch.Tensor,
    weight: torch.Tensor | None,
    eps: float,
    cos: torch.Tensor,
    sin: torch.Tensor,
) -> torch.Tensor:
    """See :func:`ascend_ops_core.ops.rotary.rms_norm_rotary`."""
    gain = _NO_WEIGHT if weight is None else as_numpy(weight)
    first = x.shape[-1] - 2 * cos.shape[-1]
    return _run(x, gain, True, eps, cos, sin, 1.0, first, True)


def _run(  # type: ignore[no-untyped-def]
    x: torch.Tensor, gain, normed: bool, eps: float, cos, sin, sign: float, first: int,
    interleaved: bool,
) -> torch.Tensor:  # fmt: skip
    out = torch.empty_like(x)
    parallel = x.numel() >= _PARALLEL_FROM
    if x.dtype == torch.bfloat16:
        kernel = _bf16_parallel if parallel else _bf16
    else:
        kernel = _f32_parallel if parallel else _f32
    kernel(
        as_numpy(x),
        gain,
        normed,
        np.float32(eps),
        as_numpy(cos.float().contiguous()),
        as_numpy(sin.float().contiguous()),
        np.float32(sign),
        first,
        interleaved,
        as_numpy(out),
    )
    return out


def _f32_body(  # type: ignore[no-untyped-def]
    x, gain, normed, eps, cos, sin, sign, first, interleaved, out
):
    tokens, heads, width = x.shape
    pairs = cos.shape[1]
    weighted = gain.shape[0] > 0
    for r in prange(tokens * heads):
        t = r // heads
        h = r - t * heads
        scale = np.float32(1)
        if normed:
            total = np.float32(0)
            for d in range(width):
                total += x[t, h, d] * x[t, h, d]
            scale = np.float32(1) / np.sqrt(total / np.float32(width) + eps)
        if weighted:
            for d in range(width):
                out[t, h, d] = x[t, h, d] * scale * gain[d]
        elif normed:
            for d in range(width):
                out[t, h, d] = x[t, h, d] * scale
        else:
            for d in range(width):
                out[t, h, d] = x[t, h, d]
        if interleaved:
            for p in range(pairs):
                a = out[t, h, first + 2 * p]
                b = out[t, h, first + 2 * p + 1]
                c = cos[t, p]
                s = sin[t, p] * sign
                out[t, h, first + 2 * p] = a * c - b * s
                out[t, h, first + 2 * p + 1] = b * c + a * s
        else:
            for p in range(pairs):
                a = out[t, h, first + p]
                b = out[t, h, first + pairs + p]
                c = cos[t, p]
                s = sin[t, p] * sign
                out[t, h, first + p] = a * c - b * s
                out[t, h, first + pairs + p] = b * c + a * s


def _bf16_body(  # type: ignore[no-untyped-def]
    x, gain, normed, eps, cos, sin, sign, first, interleaved, out
):
    tokens, heads, width = x.shape
    pairs = cos.shape[1]
    weighted = gain.shape[0] > 0
    for r in prange(tokens * heads):
        t = r // heads
        h = r - t * heads
        scale = np.float32(1)
        if normed:
            total = np.float32(0)
            for d in range(width):
                v = bf16_to_f32(x[t, h, d])
                total += v * v
            scale = np.float32(1) / np.sqrt(total / np.float32(width) + eps)
        if normed:
            for d in range(width):
                v = bf16_to_f32(x[t, h, d]) * scale
                if weighted:
                    v = v * gain[d]
                out[t, h, d] = f32_to_bf16(v)
        else:
            for d in range(width):
                out[t, h, d] = x[t, h, d]
        if interleaved:
            for p in range(pairs):
                a = bf16_to_f32(out[t, h, first + 2 * p])
                b = bf16_to_f32(out[t, h, first + 2 * p + 1])
                c = cos[t, p]
                s = sin[t, p] * sign
                out[t, h, first + 2 * p] = f32_to_bf16(a * c - b * s)
                out[t, h, first + 2 * p + 1] = f32_to_bf16(b * c + a * s)
        else:
            for p in range(pairs):
                a = bf16_to_f32(out[t, h, first + p])
                b = bf16_to_f32(out[t, h, first + pairs + p])
                c = cos[t, p]
                s = sin[t, p] * sign
                out[t, h, first + p] = f32_to_bf16(a * c - b * s)
                out[t, h, first + pairs + p] = f32_to_bf16(b * c + a * s)


_f32 = njit(fastmath=FASTMATH, cache=True)(_f32_body)
_f32_parallel = njit(fastmath=FASTMATH, parallel=True, cache=True)(_f32_body)
_bf16 = njit(fastmath=FASTMATH, cache=True)(_bf16_body)
_bf16_parallel = njit(fastmath=FASTMATH, parallel=True, cache=True)(_bf16_body)
