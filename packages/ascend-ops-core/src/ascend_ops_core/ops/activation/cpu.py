"""The limited SwiGLU and SiTU for a CPU: one pass, where torch makes five and temporaries."""

from __future__ import annotations

import numpy as np
import torch
from numba import njit, prange

from ascend_ops_core.cpu_numeric import (
    FASTMATH,
    as_numpy,
    bf16_to_f32,
    exp_f32,
    f32_to_bf16,
    narrow,
    widen,
)

_PARALLEL_FROM = 1 << 14

# tanh(t) / t by powers of t^2, whose next term is below 1e-7 there.
_T2, _T4, _T6 = np.float32(-1 / 3), np.float32(2 / 15), np.float32(-17 / 315)
_NEAR = np.float32(0.04)


def supports(gate_up: torch.Tensor) -> bool:
    """Contiguous, non-empty float32 or bfloat16."""
    return (
        gate_up.dtype in (torch.float32, torch.bfloat16)
        and gate_up.is_contiguous()
        and gate_up.numel() > 0
    )


def silu_and_mul_with_clamp(gate_up: torch.Tensor, limit: float | None) -> torch.Tensor:
    """See :func:`ascend_ops_core.ops.activation.silu_and_mul_with_clamp`."""
    width = gate_up.shape[-1]
    out = gate_up.new_empty((*gate_up.shape[:-1], width // 2))
    parallel = gate_up.numel() >= _PARALLEL_FROM
    if gate_up.dtype == torch.bfloat16:
        kernel = _bf16_parallel if parallel else _bf16
    else:
        kernel = _f32_parallel if parallel else _f32
    bound = np.float32(limit) if limit else np.float32(np.inf)
    kernel(as_numpy(gate_up.view(-1, width)), bound, as_numpy(out.view(-1, width // 2)))
    return out


def situ_and_mul(gate_up: torch.Tensor, beta: float, linear_beta: float | None) -> torch.Tensor:
    """See :func:`ascend_ops_core.ops.activation.situ_and_mul`."""
    width = gate_up.shape[-1]
    out = gate_up.new_empty((*gate_up.shape[:-1], width // 2))
    (_situ_parallel if gate_up.numel() >= _PARALLEL_FROM else _situ)(
        as_numpy(gate_up.view(-1, width)),
        np.float32(beta),
        np.float32(linear_beta or 0),
        as_numpy(out.view(-1, width // 2)),
    )
    return out


# With numpy's division, as Python's checks for zero and so keeps loops from being vectorised.
@njit(fastmath=FASTMATH, error_model="numpy", cache=True)
def swiglu_value(gate, up, limit):  # type: ignore[no-untyped-def]
    """One limited SwiGLU in float32, for kernels that fuse it; an infinite limit is none."""
    if gate > limit:
        gate = limit
    if up > limit:
        up = limit
    elif up < -limit:
        up = -limit
    return gate / (np.float32(1) + exp_f32(-gate)) * up


def _f32_body(gate_up, limit, out):  # type: ignore[no-untyped-def]
    rows, half = out.shape
    for r in prange(rows):
        for d in range(half):
            out[r, d] = swiglu_value(gate_up[r, d], gate_up[r, half + d], limit)


def _bf16_body(gate_up, limit, out):  # type: ignore[no-untyped-def]
    rows, half = out.shape
    for r in prange(rows):
        for d in range(half):
            gate = bf16_to_f32(gate_up[r, d])
            up = bf16_to_f32(gate_up[r, half + d])
            out[r, d] = f32_to_bf16(swiglu_value(gate, up, limit))


_f32 = njit(fastmath=FASTMATH, cache=True)(_f32_body)
_f32_parallel = njit(fastmath=FASTMATH, parallel=True, cache=True)(_f32_body)
_bf16 = njit(fastmath=FASTMATH, cache=True)(_bf16_body)
_bf16_parallel = njit(fastmath=FASTMATH, parallel=True, cache=True)(_bf16_body)


@njit(fastmath=FASTMATH, error_model="numpy", cache=True)
def _bounded(x, bound):  # type: ignore[no-untyped-def]
    """``bound * tanh(x / bound)``; an exponential that overflows is the bound itself.

    Near 0 the difference would lose its digits, and the series has them.
    """
    one, two = np.float32(1), np.float32(2)
    t = x / bound
    t2 = t * t
    near = x * (one + t2 * (_T2 + t2 * (_T4 + t2 * _T6)))
    far = bound - two * bound / (one + exp_f32(two * t))
    return near if t2 < _NEAR else far


def _situ_body(gate_up, beta, linear_beta, out):  # type: ignore[no-untyped-def]
    rows, half = out.shape
    for r in prange(rows):
        for d in range(half):
            gate = widen(gate_up[r, d])
            up = widen(gate_up[r, half + d])
            if linear_beta > 0:
                up = _bounded(up, linear_beta)
            y = _bounded(gate, beta) / (np.float32(1) + exp_f32(-gate)) * up
            out[r, d] = narrow(out, y)


_situ = njit(fastmath=FASTMATH, error_model="numpy", cache=True)(_situ_body)
_situ_parallel = njit(fastmath=FASTMATH, parallel=True, error_model="numpy", cache=True)(_situ_body)
